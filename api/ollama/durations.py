"""The durations that Ollama tells at the end of an answer, measured here."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from api.chat.backend import Inference
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent


class Durations:
    """Measures one request, from now on."""

    def __init__(self) -> None:
        self._begun = self._opened = self._first = time.monotonic_ns()

    def opened(self) -> None:
        """The model is ready, and so are the prompt's tokens."""
        self._opened = self._first = time.monotonic_ns()

    def generating(self) -> None:
        """The first token is here."""
        self._first = time.monotonic_ns()

    def of_embedding(self) -> dict[str, int]:
        """Nanoseconds by Ollama's names."""
        return {"total_duration": time.monotonic_ns() - self._begun, "load_duration": self._opened - self._begun}

    def of_answer(self, prompt: int, answer: int) -> dict[str, int]:
        """Nanoseconds, and the numbers of tokens, by Ollama's names."""
        now = time.monotonic_ns()
        return {
            "total_duration": now - self._begun,
            "load_duration": self._opened - self._begun,
            "prompt_eval_count": prompt,
            "prompt_eval_duration": self._first - self._opened,
            "eval_count": answer,
            "eval_duration": now - self._first,
        }


class TimedInference:
    """An `Inference` that tells when the first token comes."""

    def __init__(self, inference: Inference, durations: Durations) -> None:
        self._inference = inference
        self._durations = durations

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        async with aclosing(self._inference.generate(request)) as events:
            async for event in events:
                if event.position == 0:
                    self._durations.generating()
                yield event

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        return await self._inference.evaluate(request)
