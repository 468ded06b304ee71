"""Chats as text, by the chat template of a tokenizer, and where the answers stand in it.

An answer is what the template writes for a message of role assistant, behind the prompt that asks for it. transformers finds
the answers of a template with `{% generation %}` itself (`return_assistant_tokens_mask`). This module finds those of the
others: it renders parts of the chat, and compares them.
"""

import inspect
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .chat_forms import Message, arguments, calls, forms
from .document import Document

GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
THINKING = ("reasoning_content", "thinking", "reasoning")  # the keys that transformers knows
DAY = datetime(2024, 7, 26, 12)  # what strftime_now gives: the day that Llama 3's templates take if they have no date
DIRECTIVES = {
    sign + letter: DAY.strftime(f"%{sign}{letter}") for letter in "aAbBcdfHIjmMpSUwWxXyY" for sign in ("", "-")
}
# Stands before a template that asks for the day. transformers gives it no other way to take another clock.
CLOCK = (
    "{% macro strftime_now(format) %}{% set table = "
    + json.dumps(DIRECTIVES)
    + " %}{% for part in format.split('%') %}{% if loop.first %}{{ part }}{% elif part[:2] in table %}{{ table[part[:2]] }}"
    "{{ part[2:] }}{% else %}{{ table[part[:1]] }}{{ part[1:] }}{% endif %}{% endfor %}{% endmacro +%}"
)


@dataclass(slots=True)
class Rendered:
    """A text, and the (begin, end) of the answers in it that count, in characters."""

    text: str
    answers: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The chat template of `tokenizer`, of transformers. What is lost on the way from a chat to its text is counted in `notes`,
    which the methods take: the rest of a line of the log that begins with the number of documents."""

    tokenizer: Any  # Any: transformers has no types for it
    special: re.Pattern[str]

    def source(self, tools: object) -> str:
        """The template for a chat with `tools`: some tokenizers have several. Raises ValueError if none is for it."""
        source = str(self.tokenizer.get_chat_template(tools=tools or None))
        return CLOCK + source if "strftime_now" in source else source

    def masked(self, document: Document, notes: Counter[str]) -> tuple[list[int], list[int]]:
        """The tokens of a chat by a template with `{% generation %}`, and 1 for those that count. Raises what the template
        raises."""
        chat, text = self._fitting(document)
        self._note(document, chat, text, notes)
        out = self.tokenizer.apply_chat_template(
            chat,
            tools=list(document.tools) or None,
            chat_template=self.source(document.tools),
            return_dict=True,
            return_assistant_tokens_mask=True,
            **document.variables,
        )
        return out["input_ids"], out["assistant_masks"]

    def rendered(self, document: Document, notes: Counter[str]) -> list[Rendered]:
        """The texts of a chat by a template without `{% generation %}`; each answer counts in one of them. It is one text, unless
        the template renders an answer in another way when messages follow: Qwen3 leaves out earlier thinking. Then such an
        answer has a text of its own, which ends with it, as the model sees and writes it. Raises what the template raises."""
        chat, whole = self._fitting(document)
        self._note(document, chat, whole, notes)
        texts = [Rendered(whole)]
        for number in reversed([at for at, message in enumerate(chat) if message["role"] == "assistant"]):
            last = number == len(chat) - 1
            behind = whole if last else self._text(document, chat[: number + 1])
            begin = self._begin(document, chat[: number + 1], behind)
            closed = self._without_closing(document, chat[: number + 1], behind)
            place = next((each for each in texts if each.text.startswith(closed)), None)
            if place is None:
                texts.append(place := Rendered(behind))
            follows = place.text.startswith(behind) and len(place.text) > len(behind)
            place.answers.insert(0, (begin, len(behind if follows else closed)))
        if len(texts) > 1:
            notes[
                "have answers that the chat template renders in another way when messages follow (such as without their "
                "thinking): each of these is trained on in a sequence of its own, behind the prompt that asks for it"
            ] += 1
        return [each for each in reversed(texts) if each.answers]

    def _fitting(self, document: Document) -> tuple[list[Message], str]:
        """The messages in a form that the template can render, and their text. Templates differ in what they take: the arguments
        of a tool call as an object or as JSON, a message without content or with an empty one."""
        reserved = inspect.signature(self.tokenizer.apply_chat_template).parameters.keys() - {"documents"}
        if given := sorted(reserved & document.variables.keys()):
            raise ValueError(f"chat_template_kwargs has {given[0]!r}, which is no variable of a template")
        refusal: Exception | None = None
        for chat in forms(document.messages):
            try:
                text = self._text(document, chat)
            except Exception as error:  # a template is a program of the tokenizer's author
                refusal = refusal or error
                continue
            if not any(len(given) > 0 and str(given) in text for given in arguments(chat) if isinstance(given, dict)):
                return chat, text
        raise refusal or ValueError("it writes the arguments of a tool call neither from an object nor from JSON")

    def _begin(self, document: Document, chat: list[Message], behind: str) -> int:
        """Where the last message of `chat`, an answer, begins in its text `behind`."""
        prompt = ""
        if len(chat) > 1:
            try:
                prompt = self._text(document, chat[:-1], prompt=True)
            except Exception:  # such as a template that wants a question last
                prompt = ""
        if prompt and behind.startswith(prompt) and self._asks(document, chat[:-1], prompt):
            return len(prompt)
        content = self._first_difference(document, chat, behind)
        if not prompt:
            return content
        if behind.startswith(prompt):  # the template has no prompt for answers: a header is none, a space is part of it
            return content if behind[len(prompt) : content].strip() else len(prompt)
        return min(
            content, _common(prompt, behind)
        )  # such as a prompt with <think>, which the answer is rendered without

    def _asks(self, document: Document, chat: list[Message], prompt: str) -> bool:
        """Whether the template writes something that asks for an answer to `chat`."""
        if "add_generation_prompt" not in self.source(document.tools):
            return False
        return chat[-1]["role"] == "user" or self._text(document, chat) != prompt

    def _first_difference(self, document: Document, chat: list[Message], behind: str) -> int:
        """Where the text changes if the last message of `chat` has another content."""
        content = chat[-1].get("content") or ""
        other = "B" if content.lstrip().startswith("A") else "A"
        for replaced in (other + content, other):
            text = self._text(document, [*chat[:-1], chat[-1] | {"content": replaced}])
            if text != behind:
                return _common(text, behind)
        raise ValueError("its text is the same whatever the answer is")

    def _without_closing(self, document: Document, chat: list[Message], behind: str) -> str:
        """`behind` without the eos_token that some templates (Phi-3) write once, behind the last message of a whole chat."""
        end = self.tokenizer.eos_token
        if not behind.endswith(end) or "add_generation_prompt" not in self.source(document.tools):
            return behind
        try:
            longer = self._text(document, chat, prompt=True)
        except Exception:
            return behind
        closed = behind.removesuffix(end)
        if longer.startswith(behind) or not longer.startswith(closed):
            return behind
        # It is the only end of the answer if nothing stands between them.
        content = (chat[-1].get("content") or "").strip()
        return behind if content and closed.rstrip().endswith(content) else closed

    def _text(self, document: Document, chat: list[Message], prompt: bool = False) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat,
                tools=list(document.tools) or None,
                chat_template=self.source(document.tools),
                tokenize=False,
                add_generation_prompt=prompt,
                **document.variables,
            )
        )

    def _note(self, document: Document, chat: list[Message], text: str, notes: Counter[str]) -> None:
        """Counts what the chat has and the text has not."""
        source = self.source(document.tools)
        functions = [tool.get("function", tool) for tool in document.tools]
        if any(isinstance(one, dict) and str(one.get("name", "")) not in text for one in functions):
            notes["have tools that the chat template does not write"] += 1
        if any(str(call.get("name", "")) not in text for call in calls(chat)):
            notes["have tool calls that the chat template does not write"] += 1
        if any(message.get(key) for message in chat for key in THINKING) and not any(key in source for key in THINKING):
            notes["have thinking (reasoning_content) that the chat template does not write"] += 1
        contents = [(message["role"], message.get("content") or "") for message in chat]
        for role in sorted({role for role, content in contents if role != "assistant" and content.strip() not in text}):
            notes[f"have a message of role {role!r} whose content the chat template changes or leaves out"] += 1
        if any(self.special.search(content) for _, content in contents):
            notes[
                "have a special token of the tokenizer spelt in a message: it becomes this token, as in transformers"
            ] += 1
        if source.startswith(CLOCK):
            notes[f"have the date in their prompt: always {DAY:%d %b %Y}, so that the tokens stay the same"] += 1


def _common(one: str, other: str) -> int:
    """How many characters two texts share at their begin."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
