"""How many tokens of one session a frame has: which counts a ring keeps to, and which of them pays best. Pure."""

from node.core.row_family import RowFamily

MARGIN = 1.03
"""How many times as fast as a smaller frame a larger one must be by the formula: costs are measured with some error."""


def speed(tokens: int, cost: float, *, right: float, stages: int, in_flight: int) -> float:
    """The tokens of one stream per second with frames of so many tokens, over those of a ring of one stage with frames of
    one token, when a miss voids the frames behind it.

    `cost`: see RowFamily. `right`: the probability that a guess is right if those before it are. `in_flight`: frames of the
    stream that are in the ring at once, at most its stages: N / (c(k) * (N - 1 + 1 / (1 - a^k)) * (1 - a)) with all N.
    More are never slower, as a wrong guess takes only time in which a stage would be idle.
    """
    in_flight = max(1, min(in_flight, stages))
    if right >= 1.0:
        return tokens * in_flight / cost
    whole = right**tokens
    # A round of frames ends with the one in which a guess is wrong. That one goes round alone, and the others leave a stage
    # 1 / in_flight of a round apart.
    return (1 - whole) / (1 - right) / (cost * (1 - whole + whole / in_flight))


def tokens_of_frame(family: RowFamily, *, right: float, stages: int, in_flight: int, most: int) -> int:
    """How many tokens the next frame of a stream has: one that is certain, and guesses.

    `most`: one more than there are guesses. Where the family has no count that small, the least one, whose last tokens may
    be anything. The other arguments are those of `speed`.
    """
    (best, cost), *others = family.costs
    fastest = speed(best, cost, right=right, stages=stages, in_flight=in_flight)
    for tokens, cost in others:
        found = speed(tokens, cost, right=right, stages=stages, in_flight=in_flight)
        if tokens <= most and found > MARGIN * fastest:
            best, fastest = tokens, found
    return best
