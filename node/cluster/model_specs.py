"""Finds the description of a model for the placement: on this node, on others, or on the hub."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.core.errors import HubUnavailable, ModelBroken, ModelNotFound, ModelUnsupported, PeerUnavailable, PippinError
from node.core.models import HeldModel, ModelSpec, ModelVersion
from node.core.nodes import Address
from node.core.pool import Pools
from node.engine.compute import Compute
from node.engine.mtp import Mtp, find_mtp
from node.engine.plan import UNFUSED_CHUNK, Plan, make_plan
from node.engine.trials import Trials
from node.model.catalogue import Catalogue
from node.model.config import read_config
from node.model.hub import Hub
from node.model.picture_form import PictureForm, picture_form
from node.model.scanner import Folder
from node.model.weights import Weights, layer_of
from node.rpc.client import RpcClient
from node.text.same_tokens import difference
from node.text.sandbox import SandboxServer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelSpecs:
    catalogue: Catalogue
    hub: Hub
    compute: Compute
    client: RpcClient
    holders: Callable[[str], Sequence[tuple[Address, str]]]
    """As Agent.holders."""
    pools: Pools
    kv_bits: int
    """Of the models that `find` describes."""
    tokenizer_of: Callable[[HeldModel, Address | None], Awaitable[Path]]
    """As Files.of_tokenizer."""
    sandboxes: SandboxServer
    trials: Trials

    async def local(self, version: ModelVersion) -> ModelSpec:
        """Describe a model whose small files are here; for an empty revision, any.

        Raises ModelNotFound, ModelBroken, ModelUnsupported.
        """
        folder = await self.pools.files.run(self.catalogue.described, version.model, version.revision)
        if folder is None:
            raise ModelNotFound(f"{version.model} is not on this node.")
        return await self._read(version.model, folder, version.kv_bits)

    async def find(self, model: str) -> ModelSpec:
        """Describe a model, see `_find`. Raises ModelUnsupported also for an MTP layer without its model."""
        spec = await self._find(model)
        if _is_mtp_alone(spec):
            raise ModelUnsupported(
                f"{model} holds the MTP layer of a model, and no model.", hint="Name it so: --draft MODEL=ID"
            )
        return spec

    async def _find(self, model: str) -> ModelSpec:
        """Describe a model in the revision that the cluster will use.

        In this order: the one of which all files are here; that most other nodes have; of which some files are here; that
        the hub has at present.

        Raises ModelNotFound, ModelGated, HubUnavailable, ModelBroken, ModelUnsupported.
        """
        if whole := await self.pools.files.run(self.catalogue.whole, model):
            return await self._read(model, whole, self.kv_bits)
        failure: PippinError | None = None
        holders = self.holders(model)
        count = Counter(revision for _, revision in holders)
        for peer, revision in sorted(holders, key=lambda holder: (-count[holder[1]], holder[1])):
            try:
                return await self.client.describe(peer, ModelVersion(model, revision, self.kv_bits))
            except PippinError as error:
                failure = error
        if failure and not isinstance(failure, PeerUnavailable):
            raise failure  # a holder's error about its files says more than an unreachable hub
        if begun := await self.pools.files.run(self.catalogue.described, model):
            return await self._read(model, begun, self.kv_bits)
        flaw = await self.pools.files.run(self.catalogue.flaw, model)
        if "/" not in model:
            raise failure or flaw or ModelNotFound(f"No node has a model {model}.")
        try:
            metadata = await self.pools.hub.run(self.hub.metadata, model)
        except (ModelNotFound, HubUnavailable) as error:
            if flaw:
                raise flaw from error
            raise
        version = ModelVersion(model, metadata.directory.name, self.kv_bits)
        return await self._describe(version, metadata.config, metadata.weights)

    async def with_draft(self, draft: str, model: ModelSpec) -> ModelSpec:
        """A model's description with that of another one which is to guess its tokens: of its MTP layer, if it holds nothing else
        or is of the same shape, as the checkpoint of which the model was made; else it is a draft model.

        Raises ModelUnsupported if it has other tokens or is the same model, the errors of `find`, and those of a transfer.
        """
        spec = await self._find(draft)
        if spec.version.files == model.version.files:
            raise ModelUnsupported(
                f"{draft} can't be its own draft.", hint="Choose a smaller model of the same family."
            )
        if spec.mtp and (_is_mtp_alone(spec) or spec.kv == model.kv):
            return replace(model, mtp=spec.mtp)
        one, other = [await self.tokenizer_of(*self._holder(each)) for each in (model, spec)]
        if differs := await difference(self.sandboxes, one, other):
            raise ModelUnsupported(
                f"{draft} can't be the draft of {model.id}, as it has other tokens: {differs}.",
                hint="Choose a smaller model of the same family, or start the nodes without this --draft.",
            )
        return replace(model, draft=replace(spec, mtp=None))

    def _holder(self, spec: ModelSpec) -> tuple[HeldModel, Address | None]:
        """The model, and another node that has its files, if there is one."""
        holders = (peer for peer, revision in self.holders(spec.id) if revision == spec.version.revision)
        return spec.version.files, next(holders, None)

    async def _read(self, model: str, folder: Folder, kv_bits: int) -> ModelSpec:
        config = await self.pools.files.run(read_config, folder.path)
        weights = await self.pools.files.run(self.catalogue.weights, folder.path)
        return await self._describe(ModelVersion(model, folder.revision, kv_bits), config, weights)

    async def _describe(self, version: ModelVersion, config: dict[str, Any], weights: Weights) -> ModelSpec:
        mtp = find_mtp(config, weights.tensors)
        whole = mtp.config if mtp and mtp.is_alone else config  # the layer of a model that runs runs, too
        compute, size, kv_bits = self.compute, weights.total_bytes, version.kv_bits
        await self.trials.check(whole, size, kv_bits)
        plan = await compute.run(make_plan, whole, size, kv_bits, unproven=compute.unproven)
        layer: ModelSpec | None = None
        if mtp:
            try:
                small = await compute.run(make_plan, mtp.config, size, kv_bits, unproven=compute.unproven)
                layer = spec_of_mtp(version, mtp, small, weights)
            except (ModelUnsupported, ModelBroken) as error:  # the model can be used all the same
                log.warning("the MTP layer of %s is not used: %s", version.model, error)
        if mtp and mtp.is_alone and layer:
            return replace(layer, mtp=layer)
        form = picture_form(config, {}) if weights.tower_bytes else None
        return spec_of(version, plan, weights, layer, form)


def spec_of(
    version: ModelVersion, plan: Plan, weights: Weights, mtp: ModelSpec | None = None, form: PictureForm | None = None
) -> ModelSpec:
    """What the placement needs to know of a model. `mtp`: its MTP layer. `form`: of the pictures that it takes."""
    places = form.most_places if form and form.mutual != "none" else 0  # one step has all of a picture
    return ModelSpec(
        version=version,
        layer_bytes=tuple(weights.layer_bytes(layer) for layer in range(plan.layers)),
        ends_bytes=weights.ends_bytes + (weights.tower_bytes if form else 0),
        picture_bytes=form.work_bytes if form else 0,
        kv=plan.kv,
        cuts=plan.cuts,
        max_context=plan.max_context,
        shared_ends=bool(plan.shared),
        head_bytes=weights.head_bytes,
        score_bytes=plan.score_bytes * max(places, UNFUSED_CHUNK) // UNFUSED_CHUNK,
        mtp=mtp,
    )


def spec_of_mtp(version: ModelVersion, mtp: Mtp, plan: Plan, weights: Weights) -> ModelSpec:
    """The same of an MTP layer, or the layers that it is made of. `plan`: of its small config."""
    sizes = Counter[int | None]()
    for name, new in mtp.names.items():
        sizes[layer_of(new)] += weights.tensors[name].nbytes
    return ModelSpec(
        version=version,
        layer_bytes=tuple(sizes[layer] for layer in range(plan.layers)),
        ends_bytes=sizes[None],
        kv=plan.kv,
        cuts=(),
        max_context=plan.max_context,
        score_bytes=plan.score_bytes,
    )


def _is_mtp_alone(spec: ModelSpec) -> bool:
    return spec.mtp is not None and spec == replace(spec.mtp, mtp=spec.mtp)
