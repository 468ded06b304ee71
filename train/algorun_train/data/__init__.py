"""Reads the channels, or the embedded data, into batches on a rank's device.

- `batch`: `Source` and `Batch`, through which the training loop sees all data
- `image_data`: images as a `Source`, and how they are loaded. `channel_files` lists the files of all
  channels, `left_out` counts the others. `folder` reads image folders; `tar_listing`, `tar_index`, `tar_headers`, `tar_tree` and
  `tar_samples` tar files; both make a `listing`. `image_decoding` decodes one image, with the colours of
  `image_modes`, and says what a file is that is none; `images` caches, `decoders` and `decode_worker` decode in processes,
  `augment` changes images at random, `digits` is the embedded data
- `text`: text as a `Source`, and how it is loaded; `corpus` reads the channels
- `sampler`: which samples each replica takes at each step
- `order_sampler`: the sampler for a script's own DataLoader (`algorun.data`), by the same rules; `order_files` has the order
  if ranks hold different files, `order_ranks` what the ranks agree on
"""
