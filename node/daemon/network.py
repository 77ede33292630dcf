"""The parts by which a node and the others reach each other: servers, client, discovery, and what it knows of the cluster."""

import socket
import time
from collections.abc import Callable
from importlib.metadata import version
from ipaddress import ip_address

from api.http.server import ApiServer
from node import PROTOCOL, __version__
from node.cluster.agent import Agent
from node.cluster.heartbeats import Heartbeats
from node.cluster.unreached import Unreached
from node.core.addresses import join_host_port
from node.core.health import outside, secret_mismatch
from node.core.nodes import NodeInfo
from node.core.reports import Issue, NodeReport
from node.core.views import PeerView
from node.daemon.facts import HostFacts
from node.host.certificate import Certificate
from node.host.chip import system_name
from node.host.identity import DataDirectory
from node.host.interfaces import Interface, addresses, local_interfaces, multicast_addresses
from node.host.secret import read_secret
from node.members.address_book import AddressBook
from node.members.discovery import Discovery
from node.options import Options
from node.rpc.client import RpcClient
from node.rpc.security import secure
from node.rpc.server import RpcServer


class Network:
    def __init__(
        self, options: Options, data: DataDirectory, facts: HostFacts, local_report: Callable[[], NodeReport]
    ) -> None:
        """Binds the ports. `local_report`: as `Agent` takes it. Raises PortTaken, SecretUnusable,
        CertificateUnusable.
        """
        self._options = options
        self._facts = facts
        secret = read_secret(options.secret_file)
        security = secure(secret, options.cluster, data.key) if secret else None
        self.is_open = security is None and not (options.host and ip_address(options.host).is_loopback)
        """Whether any node that reaches this one may join."""
        every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        hosts = (options.host or every,)
        chain, key = options.tls_cert, options.tls_key
        self.certificate = Certificate(chain, key) if chain and key else None
        tls = self.certificate.context if self.certificate else None
        self.api = ApiServer(hosts, options.api_port, ollama_port=options.ollama_port, tls=tls)
        self.rpc = RpcServer(hosts, options.grpc_port, security)
        self.client = RpcClient(security)
        interfaces = self.interfaces()
        info = NodeInfo(
            id=data.identity.id,
            incarnation=data.identity.incarnation,
            name=options.name,
            cluster=options.cluster,
            version=__version__,
            protocol=PROTOCOL,
            addresses=addresses(interfaces),
            grpc_port=self.rpc.port,
            api_port=self.api.port,
            chip=facts.chip,
            started_at=time.time_ns() // 1_000_000,
            system=system_name(),
            libraries=f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}",
            api_tls=tls is not None,
        )
        book = AddressBook(info.id, self.client, interfaces, anywhere=security is not None)
        self.agent = Agent(
            info, data.identity.term, book, local_report, data.save_term, fail_after_s=options.fail_after
        )
        self.heartbeats = Heartbeats(self.agent, self.client)
        self.discovery = Discovery(
            info, multicast_addresses(interfaces), book.add_advert, fingerprint=security.fingerprint if security else ""
        )
        self.unreached = Unreached(self.agent, self.discovery.adverts)

    def interfaces(self) -> tuple[Interface, ...]:
        """This machine's, as they are now."""
        return local_interfaces(self._options.host, self._options.interface, self._facts.kinds)

    def issues(self) -> tuple[Issue, ...]:
        """Of nodes outside that this one has heard, and others maybe not."""
        return secret_mismatch(outside(self.agent.view(), self.other_secret()))

    def other_secret(self) -> tuple[PeerView, ...]:
        """Nodes with another secret: those that advertise themselves, and of --peer those that do not."""
        heard = self.discovery.refused.values()
        places = {
            join_host_port(address, peer.report.info.grpc_port)
            for peer in heard
            for address in peer.report.info.addresses
        }
        return (*heard, *(peer for name, peer in self.heartbeats.seeking.refused.items() if name not in places))
