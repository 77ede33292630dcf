"""The durations that Ollama tells at the end of an answer, measured here."""

import time


class Durations:
    """Measures one request, from now on."""

    def __init__(self) -> None:
        self._begun = self._opened = time.monotonic_ns()

    def opened(self) -> None:
        """The model is ready, and so are the prompt's tokens."""
        self._opened = time.monotonic_ns()

    def of_embedding(self) -> dict[str, int]:
        """Nanoseconds by Ollama's names."""
        return {"total_duration": time.monotonic_ns() - self._begun, "load_duration": self._opened - self._begun}

    def of_answer(self, prompt: int, answer: int, first_at: float) -> dict[str, int]:
        """Nanoseconds, and the numbers of tokens, by Ollama's names. `first_at`: time of the first one; 0: none came."""
        now, first = time.monotonic_ns(), round(first_at * 1e9) or self._opened
        return {
            "total_duration": now - self._begun,
            "load_duration": self._opened - self._begun,
            "prompt_eval_count": prompt,
            "prompt_eval_duration": first - self._opened,
            "eval_count": answer,
            "eval_duration": now - first,
        }
