"""How many tokens of one session a frame has: which counts a ring keeps to, and which of them pays best. Pure."""

from collections.abc import Sequence
from functools import reduce

from node.core.row_family import RowFamily

DEAR = 1.5
"""Cost of the least frame with a guess from which on a ring has none, as it would seldom be the faster one."""
CHEAP = 1.15
"""Most that a frame of two tokens may cost where frames of one have other bits: then each frame has a second one, guessed or not."""
MARGIN = 1.03
"""How many times as fast as a smaller frame a larger one must be by the formula: costs are measured with some error."""

PERIOD = 1024
"""Kernels for attention change where the tokens of a session, those of the step included, come to multiples of so many."""


def family_of_ring(stages: Sequence[Sequence[RowFamily]], kept: RowFamily | None = None) -> RowFamily:
    """Which counts a ring keeps to, by what each of its stages has proven; a stage that says nothing has proven one token.

    Of the families that all stages have in common it is that of frames of one token, if a larger frame is not too dear; else
    that of frames of two, if they cost little more; else that of one token alone. With the one that a ring has `kept` to, its
    counts at what they cost by later measurements; if that was one token alone, maybe as a stage had yet to try others, the first of
    these families, which has the same bits.
    """
    known = [[dict(family.costs) for family in families] or [{1: 1.0}] for families in stages]
    common = reduce(_common, known) if known else []
    before = dict(kept.costs) if kept else {}
    if kept and before.keys() != {1}:
        costs = next((family for family in common if family.keys() >= before.keys()), before)
        return _family({count: costs[count] for count in before})
    with_one = next((family for family in common if 1 in family), {})
    if len(with_one) > 1 and sorted(with_one.items())[1][1] < DEAR:
        return _family(with_one)
    from_two = next((family for family in common if 2 in family and 1 not in family), {})
    return _family(from_two) if not kept and from_two and from_two[2] <= CHEAP else RowFamily()


def most_at(position: int, family: RowFamily) -> int:
    """Most tokens that a step gives a session, whose first one is at this position.

    A step that reaches across a multiple of PERIOD has other kernels than a shorter one, for all of its tokens. So each token
    at less than the family's largest count before one is the first of a step of the least count.
    """
    return max(1, PERIOD - family.costs[-1][0] - position % PERIOD)


def _common(one: Sequence[dict[int, float]], other: Sequence[dict[int, float]]) -> list[dict[int, float]]:
    """The counts that are in a family of both, each at the cost of the stage for which it is dearer."""
    return [{count: max(a[count], b[count]) for count in a.keys() & b.keys()} for a in one for b in other]


def _family(costs: dict[int, float]) -> RowFamily:
    # A node may say anything.
    return RowFamily(tuple((count, max(1.0, cost)) for count, cost in sorted(costs.items())))


def speed(tokens: int, cost: float, *, right: float, stages: int, in_flight: int) -> float:
    """The tokens of one stream per second with frames of so many tokens, over those of a ring of one stage with frames of
    one token, when a miss voids the frames behind it.

    `cost`: see RowFamily. `right`: the probability that a guess is right if those before it are. `in_flight`: frames of the
    stream that are in the ring at once, at most its stages: N / (c(k) * (N - 1 + 1 / (1 - a^k)) * (1 - a)) with all N.
    More are never slower where stages take equally long, as a wrong guess takes only time in which one would be idle.
    """
    in_flight = max(1, min(in_flight, stages))
    if right >= 1.0:
        return tokens * in_flight / cost
    whole = right**tokens
    # A round of frames ends with the one in which a guess is wrong. That one goes round alone, and the others leave a stage
    # 1 / in_flight of a round apart.
    return (1 - whole) / (1 - right) / (cost * (1 - whole + whole / in_flight))


def guesses_to_wait_for(family: RowFamily, *, right: float, wait: float, stages: int, in_flight: int, most: int) -> int:
    """How many guesses the next frame of a stream, of at most so many tokens, should wait for; 0 if it is the faster one without.

    `wait`: what each of them takes, in the time of a frame of one token. The other arguments are those of `speed`.
    """
    least, cost = family.costs[0]
    best, fastest = 0, speed(least, cost, right=0.0, stages=stages, in_flight=in_flight)
    for tokens, cost in family.costs:
        found = speed(tokens, cost + (tokens - 1) * wait, right=right, stages=stages, in_flight=in_flight)
        if 1 < tokens <= most and found > MARGIN * fastest:
            best, fastest = tokens - 1, found
    return best


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
