"""The same training with transformers.Trainer, resumed by resume_from_checkpoint."""

from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from bench.once.counting import EPOCHS, SAMPLES, SAVED, Counts, arguments, introduce, work, write_counts


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"sample": index}


class Counting(Trainer):
    def compute_loss(self, model: nn.Module, inputs: dict, return_outputs: bool = False, num_items_in_batch=None):
        return model(0, inputs["sample"]) * self.args.world_size  # DDP divides by the replicas


class Working(TrainerCallback):
    def on_step_end(self, args: TrainingArguments, state, control, **more: object) -> None:
        work(args.train_batch_size * args.world_size, args.process_index, state.global_step)


def train(folder: Path, batch_size: int, workers: int) -> None:
    model = Counts(rows=1)
    args = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=batch_size,
        dataloader_num_workers=workers,
        save_steps=SAVED,
        max_grad_norm=0,
        remove_unused_columns=False,
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    introduce(args.process_index)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Counting(model, args, train_dataset=Numbers(), optimizers=(optimizer, constant), callbacks=[Working()])
    # One that a kill has left half written has no trainer_state.json, which is written last.
    complete = [file.parent for file in folder.glob("checkpoint-*/trainer_state.json")]
    newest = max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    trainer.train(resume_from_checkpoint=newest and str(newest))
    if args.process_index == 0:
        write_counts(model, folder)


def main() -> None:
    args = arguments()
    train(args.folder, args.batch_size, args.workers)


if __name__ == "__main__":
    main()
