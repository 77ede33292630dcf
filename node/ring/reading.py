"""A text that is being evaluated: what is known of it so far, step by step."""

import math

from node.core.evaluation import EvaluateRequest, Evaluation, Findings, Question, Score


class Reading:
    """Belongs to one stay in a lane: when KV is lost, a new one begins at the first token, so nothing is counted twice."""

    def __init__(self, request: EvaluateRequest) -> None:
        self._request = request
        self._read = 0
        self._scores: list[Score] = []
        self._total: list[float] = []

    def question(self, tokens: int) -> Question:
        """What to ask about the step of the text's next so many tokens."""
        first = self._read + 1
        return Question(tokens, self._request.prompt[first : first + tokens], self._request.top)

    def add(self, findings: Findings) -> Evaluation | None:
        """Note what was found in that step; when the text has ended, the whole."""
        self._read += findings.tokens
        self._scores += findings.scores
        before = self._total or [0.0] * len(findings.total)
        self._total = [a + b for a, b in zip(before, findings.total, strict=True)]
        if self._read < len(self._request.prompt):
            return None
        length = math.hypot(*self._total) or 1.0
        return Evaluation(self._scores, [value / length for value in self._total])
