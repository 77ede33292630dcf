"""Facts about this machine that are read once, before gRPC and Metal start."""

from collections.abc import Mapping
from dataclasses import dataclass

from node.core.nodes import Memory
from node.core.reports import Issue
from node.engine.device import choose_device, device_memory, has_slow_blas, tuned_blas
from node.host import memory
from node.host.chip import chip_name
from node.host.examination import examine_start
from node.host.firewall import blocked_program
from node.host.interfaces import hardware_kinds
from node.host.tailnet import tailnet_name
from node.options import Options


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Some need a subprocess, and neither gRPC nor Metal survives a fork."""

    kinds: Mapping[str, str]
    """Kind of each interface, by its name."""
    memory: Memory
    chip: str
    issues: tuple[Issue, ...] = ()
    """Of this machine and of the options; they stay until the next start."""
    tailnet_name: str = ""
    """Of this machine, if it is in one."""

    @classmethod
    def read(cls, options: Options) -> "HostFacts":
        """Raises DeviceUnavailable if MLX cannot use the device of the options."""
        kinds, chip, blocked, name = hardware_kinds(), chip_name(), blocked_program(), tailnet_name()
        choose_device(options.device)
        device, asked = device_memory(), options.memory
        issues = examine_start(
            options.name,
            excess=memory.excess(device, asked),
            blocked=blocked,
            blas=tuned_blas() if has_slow_blas() else None,
            allow_sleep=options.allow_sleep,
            is_open=options.open_api and not options.api_keys,
        )
        return cls(kinds, Memory(memory.total(), memory.usable(device, asked)), chip, tuple(issues), name)
