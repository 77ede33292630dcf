"""What placement needs to know of each model, from wherever the model is."""

from collections.abc import Callable, Sequence
from typing import Any

from node.core.errors import HubUnavailable, ModelNotFound, PeerUnavailable, PippinError
from node.core.pool import Pools
from node.core.types import Address, ModelSpec
from node.engine.compute import Compute
from node.engine.files import read_config
from node.engine.plan import make_plan
from node.rpc.client import RpcClient
from node.store.catalogue import Catalogue
from node.store.hub import Hub
from node.store.weights import Weights


class Specs:
    def __init__(
        self,
        catalogue: Catalogue,
        hub: Hub,
        compute: Compute,
        client: RpcClient,
        holders: Callable[[str], Sequence[Address]],
        pools: Pools,
    ) -> None:
        self._pools = pools
        self._catalogue = catalogue
        self._hub = hub
        self._compute = compute
        self._client = client
        self._holders = holders

    async def local(self, model: str) -> ModelSpec:
        """Of a model whose files are on this node. Raises ModelNotFound, ModelBroken, ModelUnsupported."""
        directory = await self._pools.files.run(self._catalogue.directory, model)
        if directory is None:
            raise ModelNotFound(f"{model} is not on this node.")
        config = await self._pools.files.run(read_config, directory)
        return await self._made(model, config, await self._pools.files.run(Weights.read, directory))

    async def find(self, model: str) -> ModelSpec:
        """From this disk, a peer's, or the hub.

        Raises ModelNotFound, ModelGated, HubUnavailable, ModelBroken, ModelUnsupported.
        """
        if await self._pools.files.run(self._catalogue.directory, model):
            return await self.local(model)
        failure: PippinError | None = None
        for peer in self._holders(model):
            try:
                return await self._client.describe(peer, model)
            except PippinError as error:
                failure = error
        if failure and not isinstance(failure, PeerUnavailable):
            raise failure  # what a holder says of its files is worth more than that the hub is not reached
        flaw = await self._pools.files.run(self._catalogue.flaw, model)
        if "/" not in model:
            raise failure or flaw or ModelNotFound(f"No node has a model {model}.")
        try:
            metadata = await self._pools.hub.run(self._hub.metadata, model)
        except (ModelNotFound, HubUnavailable) as error:
            if flaw:
                raise flaw from error
            raise
        config = await self._pools.files.run(read_config, metadata.directory)
        return await self._made(model, config, metadata.weights)

    async def _made(self, model: str, config: dict[str, Any], weights: Weights) -> ModelSpec:
        plan = await self._compute.run(make_plan, config, weights.total_bytes)
        return ModelSpec(
            id=model,
            layer_bytes=tuple(weights.layer_bytes(layer) for layer in range(plan.layers)),
            ends_bytes=weights.ends_bytes,
            kv=plan.kv,
            cuts=plan.cuts,
            max_context=plan.max_context,
            shared_ends=bool(plan.shared),
            head_bytes=weights.head_bytes,
        )
