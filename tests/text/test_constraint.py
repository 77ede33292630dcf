"""Models with random weights follow grammars: answers are valid to the last character, and the same when replayed."""

import asyncio
import json
import random
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import jsonschema
import pytest
from transformers import PreTrainedTokenizerFast

from node.core.errors import BadRequest
from node.core.generation import GenerateRequest, Sampling
from node.core.models import ModelVersion
from node.core.rings import Fence, Ring, StageSpec
from node.engine.compute import Compute
from node.engine.faults import Faults
from node.engine.runner import Runner
from node.ring.driver import Driver
from node.ring.limits import RingLimits
from node.ring.requests import generate
from node.ring.scheduler import Scheduler
from node.text.constraint import Constraint, Constraints, GrammarLost
from node.text.grammar import Function, calls_grammar, json_grammar
from node.text.tokenizer import Tokenizer
from tests.engine.models import load, write_model
from tests.text.test_tokenizer import save, sentencepiece, word_pieces

DEMO = Path(__file__).parents[2] / "node" / "builtin" / "pippin-demo"
CONTEXT = 2048
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "size": {"enum": ["klein", "groß", "大"]},
        "likes": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4},
        "home": {"type": "object", "properties": {"door": {"type": "integer"}}, "required": ["door"]},
    },
    "required": ["name", "age", "size", "likes", "home"],
    "additionalProperties": False,
}
GRAMMAR = json_grammar(PERSON, strict=True, param="response_format")


def constraints_of(directory, vocabulary):
    """Constraints of a model of our own, which no sandbox needs to clean."""
    constraints = Constraints(directory, vocabulary)
    constraints.read(directory)
    return constraints


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model of random weights with the demo model's tokens."""
    small = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16}
    config = (
        json.loads((DEMO / "config.json").read_text()) | small | {"num_attention_heads": 2, "num_key_value_heads": 1}
    )
    directory = write_model(tmp_path_factory.mktemp("random"), config)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(DEMO / name, directory)
    return directory


@pytest.fixture(scope="module")
def tokenizer(directory):
    return Tokenizer(directory)


@pytest.fixture
def driving(directory, tokenizer, grammars):
    @asynccontextmanager
    async def driving(*, ahead=True):
        """A ring of one node; yields a function that sends it a prompt and options. `ahead`: steps begin before the tokens of the
        last ones are read.
        """
        compute = Compute()
        compute.start()
        stage = await compute.run(load, directory, 0, 2)
        ring = Ring(
            "ring", ModelVersion("random"), (StageSpec("n", 0, 2),), CONTEXT, 8, shared_ends=False, fence=Fence(1, 1)
        )
        runner = Runner(stage, directory, Faults())
        runner.plan = replace(stage.plan, steps_back=ahead)
        scheduler = Scheduler(RingLimits(CONTEXT, 8, 64, 16, 128), runner.plan, count(1 << 16), 1)
        driver = Driver(ring, scheduler, compute, runner, None, lambda *_: None, leftover={})
        task = asyncio.create_task(driver.run())

        async def ask(grammar, *, max_tokens=400, resume=(), **sampling):
            request = GenerateRequest(
                id="x",
                model="random",
                prompt=tuple(tokenizer.encode("Hello")),
                max_tokens=max_tokens,
                stop_tokens=tokenizer.eos,
                sampling=Sampling(**sampling),
                grammar=grammar,
                resume=tuple(resume),
            )
            return [event async for event in generate(driver, grammars, request)]

        yield ask
        task.cancel()
        await asyncio.wait([task])
        compute.stop()

    return driving


def tokens_of(events):
    return [event.token for event in events]


SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0, "frequency_penalty": 2.0, "repetition_penalty": 1.5},
    *({"seed": seed} for seed in range(6)),
    {"seed": 9, "temperature": 2.0, "top_k": 5},
    {"seed": 9, "temperature": 0.7, "top_p": 0.5, "min_p": 0.1},
    {"seed": 3, "logit_bias": {2: 100.0, 300: 100.0, 7: 100.0}},
]


@pytest.mark.slow
async def test_every_answer_is_valid_whatever_the_sampling_alone_and_in_a_batch(driving, tokenizer):
    async with driving() as ask:
        batch = await asyncio.gather(*(ask(GRAMMAR, **sampling) for sampling in SAMPLINGS))
        for events, sampling in zip(batch, SAMPLINGS, strict=True):
            assert events[-1].finish == "stop"
            assert events[-1].token in tokenizer.eos
            assert not tokenizer.markup & set(tokens_of(events[:-1]))
            jsonschema.validate(json.loads(tokenizer.decode(tokens_of(events))), PERSON)
            assert tokens_of(await ask(GRAMMAR, **sampling)) == tokens_of(events)
        assert len({tuple(tokens_of(events)) for events in batch}) > 6


async def test_rows_without_a_grammar_draw_as_they_do_alone(driving):
    free = [{"temperature": 0}, {"seed": 5}]
    async with driving() as ask:
        alone = [await ask("", max_tokens=60, **sampling) for sampling in free]
        mixed = await asyncio.gather(
            ask(GRAMMAR, seed=1),
            *(ask("", max_tokens=60, **sampling) for sampling in free),
            ask(GRAMMAR, temperature=0),
        )
        assert [tokens_of(events) for events in mixed[1:3]] == [tokens_of(events) for events in alone]


@pytest.mark.parametrize("bound_from", ["", "e", " t"])
async def test_steps_that_begin_before_a_token_is_read_change_no_token(driving, tokenizer, bound_from):
    """Nor does the end of a mark within several of them, alone or in a batch."""
    grammar = json.dumps({"mark": bound_from, "bound": GRAMMAR}) if bound_from else GRAMMAR
    found = []
    for ahead in (True, False):
        async with driving(ahead=ahead) as ask:
            alone = [await ask(grammar, **sampling) for sampling in SAMPLINGS[:4]]
            batch = await asyncio.gather(*(ask(grammar, **sampling) for sampling in SAMPLINGS[1:4]), ask("", seed=1))
            found.append([*map(tokens_of, alone), *map(tokens_of, batch)])
    assert found[0] == found[1]
    texts = [tokenizer.decode(tokens) for tokens in found[0]]
    answers = [text[text.index('{"name"') :] for text in texts if '{"name"' in text]
    assert len(answers) >= 3
    for answer in answers:
        jsonschema.validate(json.loads(answer), PERSON)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 4}])
async def test_an_answer_that_is_taken_up_goes_on_as_if_nothing_had_happened(driving, sampling):
    """Another driver has only the grammar and the tokens."""
    async with driving() as ask:
        whole = tokens_of(await ask(GRAMMAR, **sampling))
    async with driving() as ask:
        for done in range(1, len(whole)):
            events = await ask(GRAMMAR, resume=whole[:done], **sampling)
            assert tokens_of(events) == whole[done:]
            assert events[0].position == done


async def test_what_max_tokens_cuts_ends_with_length(driving, tokenizer):
    async with driving() as ask:
        whole = tokens_of(await ask(GRAMMAR, seed=2))
        truncated = await ask(GRAMMAR, seed=2, max_tokens=7)
        assert tokens_of(truncated) == whole[:7]
        assert truncated[-1].finish == "length"


async def test_log_probabilities_are_those_of_the_free_model(driving):
    async with driving() as ask:
        free = await ask("", max_tokens=1, temperature=0, logprobs=3)
        bound = await ask(GRAMMAR, max_tokens=1, temperature=0, logprobs=3)
        assert bound[0].token != free[0].token
        assert bound[0].top == free[0].top
        assert bound[0].logprob <= free[0].logprob


async def test_calls_of_a_random_model(driving, tokenizer):
    functions = [
        Function("move", {"type": "object", "properties": {"to": {"enum": ["left", "right"]}}, "required": ["to"]}),
        Function("stop", {"type": "object", "properties": {}}),
    ]
    grammar = calls_grammar(functions, many=True, param="tools")
    called = set()
    async with driving() as ask:
        for events in await asyncio.gather(*(ask(grammar, seed=seed, max_tokens=1500) for seed in range(8))):
            assert events[-1].finish == "stop"
            for line in tokenizer.decode(tokens_of(events)).splitlines():
                call = json.loads(line)
                (function,) = (function for function in functions if function.name == call["name"])
                jsonschema.validate(call["arguments"], function.parameters)
                called.add(function.name)
    assert called == {"move", "stop"}


async def test_a_grammar_that_is_none_harms_nobody(driving, tokenizer):
    async with driving() as ask:
        running = asyncio.create_task(ask(GRAMMAR, seed=1))
        for grammar, resume in (("no grammar", ()), ("{}", ()), (GRAMMAR, (5, 6)), (GRAMMAR, tuple(tokenizer.eos))):
            with pytest.raises(BadRequest):
                await ask(grammar, resume=resume)
        assert (await running)[-1].finish == "stop"


async def test_a_grammar_that_is_lost_on_the_way_ends_its_own_session_alone(driving, monkeypatch):
    async with driving() as ask:
        expected = tokens_of(await ask(GRAMMAR, seed=1))
        begin = Constraints.begin

        def begin_lost(self, grammar, generated=()):
            constraint = begin(self, grammar, generated)
            allowed = constraint.allowed
            constraint.allowed = lambda tokens: allowed([2, 2] if len(tokens) == 5 else tokens)
            return constraint

        running = asyncio.create_task(ask(GRAMMAR, seed=1))
        await asyncio.sleep(0)
        monkeypatch.setattr(Constraints, "begin", begin_lost)
        with pytest.raises(GrammarLost):
            await ask(GRAMMAR, seed=1)
        assert tokens_of(await running) == expected


@pytest.mark.parametrize("prepend", ["first", "always", "never"])
def test_tokens_of_sentencepiece(tmp_path, prepend):
    """Any sampling among the allowed tokens gives valid JSON in the text that the reader gets."""
    tokenizer = Tokenizer(save(sentencepiece(prepend), tmp_path))
    constraints = constraints_of(tmp_path, tokenizer.vocab_size)
    for seed in range(20):
        choose, constraint, tokens = random.Random(seed), constraints.begin(GRAMMAR), []
        while not tokens or tokens[-1] not in tokenizer.eos:
            bits = constraint.allowed(tokens) or b""
            tokens.append(choose.choice([token for token in range(len(bits) * 8) if bits[token // 8] >> token % 8 & 1]))
        detokenizer = tokenizer.detokenizer()
        jsonschema.validate(json.loads("".join(map(detokenizer.add, tokens))), PERSON)


def test_a_model_whose_tokens_have_no_bytes_or_no_end_follows_no_grammar(tmp_path):
    save(word_pieces(), tmp_path / "words")
    constraints = constraints_of(tmp_path / "words", 300)
    with pytest.raises(BadRequest, match="bytes"):
        constraints.begin(GRAMMAR)
    assert constraints.is_read  # it is not read again
    PreTrainedTokenizerFast(tokenizer_object=sentencepiece("first")).save_pretrained(tmp_path / "endless")
    with pytest.raises(BadRequest, match="ends"):
        constraints_of(tmp_path / "endless", 600).begin(GRAMMAR)


def test_a_vocabulary_that_is_larger_than_the_tokenizers_has_no_more_tokens(directory, tokenizer):
    bits = (
        constraints_of(directory, tokenizer.vocab_size + 100)
        .begin(json_grammar({}, strict=True, param="x"))
        .allowed(())
    )
    allowed = {token for token in range(len(bits) * 8) if bits[token // 8] >> token % 8 & 1}
    assert allowed
    assert max(allowed) < tokenizer.vocab_size


def test_forced_tokens_are_the_only_ones_that_are_allowed(directory, tokenizer):
    """To look ahead changes nothing that is allowed."""
    constraints, rng = constraints_of(directory, 1024), random.Random(3)
    found = 0
    for _ in range(10):
        one, other = (constraints.begin(GRAMMAR) for _ in range(2))
        generated, forced = [], []
        while bits := one.allowed(generated):
            assert bits == other.allowed(generated)
            allowed = [token for token in range(8 * len(bits)) if bits[token // 8] >> token % 8 & 1]
            if forced:
                assert allowed == forced[:1]
            token = rng.choice(allowed)
            if token in tokenizer.eos:
                break
            one.look_ahead(token)
            assert forced[1:] == one.forced[: len(forced) - 1 if forced else 0]
            forced = one.forced
            found += len(forced[:1])
            generated.append(token)
    assert found > 50


@pytest.mark.parametrize("mark", [b"", b"##"])
def test_a_constraint_goes_back_with_its_session(mark, directory, tokenizer):
    """Guesses that were right go with a session that is preempted before it gets them."""
    constraints = constraints_of(directory, tokenizer.vocab_size)
    free = "Well. ##" if mark else ""
    generated = tokenizer.encode(free + '{"name": "a", "age": 1, "size": "klein", "likes": [], "home": {"door": 1}}')

    def begin():
        bound = constraints.begin(GRAMMAR)
        return Constraint(bound._matcher, mark, constraints._tokens)

    constraint = begin()
    for length in (1, 12, 3, 4, 0, 20, len(generated), 14):
        assert constraint.allowed(generated[:length]) == begin().allowed(generated[:length]), length
        assert constraint.error is None


def test_a_session_may_end_while_its_constraint_looks_ahead(directory):
    constraint = constraints_of(directory, 1024).begin(GRAMMAR)
    constraint.allowed(())

    class Matcher:
        def consume_token(self, token):
            constraint.close()
            return True

        def compute_ff_tokens(self):
            return [1, 2]

        def rollback(self, count):
            pass

    constraint._matcher = Matcher()
    constraint.look_ahead(1)
    assert constraint.forced == [1, 2]
