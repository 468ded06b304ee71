"""Chat templates in the formats of well-known model families, and tokenizers that are trained here.

`[[` and `]]` stand where a template puts `{% generation %}` around the assistant's text, if it has it. The formats are those
that the families document; the templates are written for these tests.
"""

import json
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "[[{{ m.content + '<|im_end|>\n' }}]]{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FAMILIES = {
    "ChatML (Qwen2)": CHATML,
    "ChatML with a system prompt of its own (SmolLM)": (
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" + CHATML
    ),
    "Llama 2": (
        ALTERNATE + "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content | trim + ' [/INST]' }}"
        "{% else %}[[{{ ' ' + m.content | trim + ' ' + eos_token }}]]{% endif %}{% endfor %}"
    ),
    "Llama 3": (
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
        "{% if m.role == 'assistant' %}[[{{ m.content | trim + '<|eot_id|>' }}]]{% else %}{{ m.content | trim + '<|eot_id|>' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "Mistral": (
        "{{ bos_token }}" + ALTERNATE + "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}[[{{ m.content + eos_token }}]]{% endif %}{% endfor %}"
    ),
    "Gemma": (
        "{{ bos_token }}" + ALTERNATE + "{% if m.role == 'user' %}{{ '<start_of_turn>user\n' + m.content | trim + '<end_of_turn>\n' }}"
        "{% else %}{{ '<start_of_turn>model\n' }}[[{{ m.content | trim + '<end_of_turn>\n' }}]]{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "Phi-3": (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}[[{{ m.content + '<|end|>\n' }}]]"
        "{% else %}{{ m.content + '<|end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    "Zephyr": (
        "{% for m in messages %}\n{% if m.role == 'assistant' %}\n{{ '<|assistant|>\n' }}[[{{ m.content + eos_token + '\n' }}]]"
        "{% else %}\n{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
    ),
    "Command-R": (
        "{{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|>' }}{% if m.role == 'assistant' %}"
        "{{ '<|CHATBOT_TOKEN|>' }}[[{{ m.content | trim + '<|END_OF_TURN_TOKEN|>' }}]]{% else %}"
        "{{ '<|USER_TOKEN|>' + m.content | trim + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
    ),
    "DeepSeek": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'User: ' + m.content + '\n\n' }}"
        "{% elif m.role == 'assistant' %}{{ 'Assistant: ' }}[[{{ m.content + eos_token }}]]{% else %}{{ m.content + '\n\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
    ),
    "Granite": (
        "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' }}{% if m.role == 'assistant' %}"
        "[[{{ m.content + '<|end_of_text|>\n' }}]]{% else %}{{ m.content + '<|end_of_text|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
    ),
    "Falcon": (
        "{% for m in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{% if m.role == 'assistant' %}{{ 'Falcon:' }}"
        "[[{{ ' ' + m.content | trim }}]]{% else %}{{ m.role.capitalize() + ': ' + m.content | trim }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\nFalcon:' }}{% endif %}"
    ),
    "OLMo": (
        "{{ eos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' }}"
        "[[{{ m.content + eos_token }}]]{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}"
        "{{ '<|' + m.role + '|>\n' + m.content + '\n' }}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
    ),
}  # fmt: skip
WORDS = "the cat sat on a mat yes no . été\n"


@cache
def library_tokenizer(kind: str) -> Tokenizer:
    """A tokenizer of the library, trained on a few words. `kind`: bytes, as GPT-2; or fallback, as Llama 2."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256) if kind == "fallback")]
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = list("\u2581" + WORDS.strip())
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    if kind == "fallback":  # the bytes are no special tokens of a text
        content = json.loads(tokenizer.to_str())
        content["added_tokens"] = content["added_tokens"][:3]
        tokenizer = Tokenizer.from_str(json.dumps(content))
    return tokenizer


def write_tokenizer(folder: Path, template: str | None = None, kind: str = "bytes", **settings: object) -> Path:
    """A folder with a tokenizer, and a chat template if it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    library_tokenizer(kind).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config | settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def marked(template: str) -> str:
    """The template with `{% generation %}` around the assistant's text."""
    return template.replace("[[", "{% generation %}").replace("]]", "{% endgeneration %}")


def plain(template: str) -> str:
    """The template without `{% generation %}`."""
    return template.replace("[[", "").replace("]]", "")
