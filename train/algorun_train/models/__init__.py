"""The models of the bundled jobs.

- `image_models`: builds an image classifier (`vit`, `convnet`) from an `image_spec`, and decides its sizes
- `gpt`: a language model over bytes; `transformer` is what it shares with `vit`
- `pretrained`: weights to start from
"""
