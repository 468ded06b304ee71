"""From the channels, or from data that is embedded, to batches on a rank's device.

- `batch`: what the training loop wants of data, whatever it is (`Source`, `Batch`)
- `image_data`: images as a `Source`, and where they are loaded; `folder` reads image folders, `images` decodes and
  caches, `augment` changes them, `digits` is the embedded data
- `text`: text as a `Source`, and where it is loaded; `corpus` reads the channels
- `sampler`: which samples each replica takes at each step
"""
