"""The models of the bundled jobs.

- `image_models`: the choice and the sizes of an image classifier (`vit`, `convnet`)
- `gpt`: a language model over bytes; `transformer` is what it shares with `vit`
- `pretrained`: weights to start from
"""
