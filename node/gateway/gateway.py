"""What the API asks of a node. Every node has a gateway, whoever is head."""

from dataclasses import dataclass

from node.cluster.commands import Commands
from node.gateway.disk import Disk
from node.gateway.model_index import ModelIndex
from node.gateway.monitor import Monitor
from node.gateway.open_models import OpenModels
from node.gateway.peers import Peers
from node.gateway.router import Router
from node.text.grammars import Grammars
from node.text.pictures import Pictures


@dataclass(frozen=True, slots=True)
class Gateway:
    """Its parts, each of which the API asks directly."""

    models: ModelIndex
    open_models: OpenModels
    router: Router
    grammars: Grammars
    pictures: Pictures
    commands: Commands
    disk: Disk
    monitor: Monitor
    peers: Peers
