"""Every warning that `cluster status` may show: its code, severity, text and hint. docs/troubleshooting.md is drawn from it."""

from enum import StrEnum
from functools import partial
from typing import Self

from node.core.reports import Issue, Severity


def _wording(severity: Severity, code: str, text: str, hint: str = "") -> tuple[str, Severity, str, str]:
    return code, severity, text, hint


_error = partial(_wording, Severity.ERROR)
_warning = partial(_wording, Severity.WARNING)
_info = partial(_wording, Severity.INFO)


class Code(StrEnum):
    """Stable codes, on which scripts and dashboards rely. Texts and hints are formats, whose fields `issue` fills in."""

    severity: Severity
    wording: str
    hint: str

    def __new__(cls, code: str, severity: Severity, text: str, hint: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.severity, member.wording, member.hint = severity, text, hint
        return member

    def issue(self, *, hint: str | None = None, **fields: object) -> Issue:
        """The warning with these fields. `hint`: instead of the usual one."""
        text = self.wording.format(**fields)
        if not text.endswith((".", "!", "?")):  # as errors of libraries; a hint follows on the same line
            text += "."
        return Issue(self, self.severity, text, self.hint.format(**fields) if hint is None else hint)

    NO_CAPACITY = _error("no-capacity", "{message}")
    MODEL_REFUSED = _error("model-refused", "{message}")
    LOAD_FAILED = _error(
        "load-failed",
        "{node} could not load {layers}: {error}",
        "See the log of {node}. Load the model again when the cause is gone.",
    )
    NODE_FAILED = _error(
        "node-failed",
        "{node} has not answered for {seconds:.0f} s{reason}",
        "Check its power and its network. It joins again by itself.",
    )
    COMPUTE_STUCK = _warning(
        "compute-stuck",
        "{node} has been busy with one computation for {seconds:.0f} s.",
        "If the computation never ends, the node exits by itself (see --step-timeout): then start it again.",
    )
    GPU_FAILED = _warning(
        "gpu-failed",
        "{node} has seen its GPU fail {times} since it started, the last time so: {error}",
        "Answers went on without a gap. If it repeats, restart that machine; on a Mac read docs/mac.md first.",
    )
    DISK_FAILED = _warning(
        "disk-failed",
        "{node} can't write to its data directory, so it does not become head: {error}",
        "Free space on its disk, or fix the permissions of the directory. The node retries every few seconds.",
    )
    VERSION_MISMATCH = _warning(
        "version-mismatch", "{node} has not joined: {reason}", "Install the same version on every node."
    )
    SECRET_MISMATCH = _warning(
        "secret-mismatch",
        "Nodes with the same cluster name, but not the same secret, have not joined: {nodes}.",
        "Start all your nodes with the same --secret-file. If these are not yours, choose another --cluster name.",
    )
    SLOW_LINK = _warning(
        "slow-link",
        "{node} reaches {neighbour}{path} in {rtt_ms:.1f} ms per token.",
        "Check for a busy network, a VPN or a wireless bridge.",
    )
    RING_ENDED = _warning(
        "ring-ended",
        "A ring of {model} ended at {node}: {error}",
        "A new ring replaces it, at most once a second. If this repeats, check the network between its nodes.",
    )
    NO_GUESSES = _warning(
        "no-guesses",
        "{node} answers for {model} without the guesses of its draft model or MTP layer: {error}",
        "The text is the same, only slower. Fetch the model again, or name another one with --draft.",
    )
    DRAFT_REFUSED = _warning("draft-refused", "{model} is served without its draft model {draft}: {error}")
    LOADING = _info("loading", "{node} has {verb} {percent:.0f} % of {layers}{figures}.")
    OPEN_CLUSTER = _info(
        "open-cluster",
        "No secret is set: every machine on this network can join the cluster and read its prompts and answers.",
        "Start all nodes with the same --secret-file, or use the cluster only on networks that you trust.",
    )
    VERSION_SKEW = _info(
        "version-skew",
        "The nodes run {count} versions: {versions}.",
        "Update the others one after the other: `cluster drain NODE`, install, start it again.",
    )
    NO_MULTICAST = _warning(
        "no-multicast",
        "{node} neither finds others nor is found by itself, as multicast DNS does not work there: {reason}",
        "Allow UDP port 5353, or name other nodes with --peer HOST:PORT.",
    )
    DISK_LOW = _warning(
        "disk-low",
        "{node} has {free} left on the disk of {folder}, where it keeps models.",
        "Free some space: models of the hub are shown by `hf cache ls`, and deleted by `hf cache rm`.",
    )
    DATA_GONE = _warning(
        "data-gone",
        "{node} no longer finds its data directory {folder}: it was deleted, or its disk was removed.",
        "Put it back, or start the node anew: without the key that was in it, the node joins as a new one.",
    )
    KV_NOT_STORED = _warning(
        "kv-not-stored",
        "{node} can't write the KV of sessions to its disk: {error}.",
        "Free some space there, or start it with --kv-disk 0.",
    )
    FOLDER_DENIED = _warning(
        "folder-denied",
        "{node} may not read {folder}, where it looks for models: the system does not permit it.",
        "See what guards the folder on that system, or keep the models elsewhere.",
    )
    FEW_DESCRIPTORS = _warning(
        "few-descriptors",
        "{node} may open {limit} files and connections at once; {needed} are needed for many clients.",
        "Run `ulimit -n {needed}` before the node starts, or raise LimitNOFILE in its unit of systemd.",
    )
    MEMORY_LIMIT = _warning("memory-limit", "{node} was started with too much {excess}")
    WIRED_MEMORY = _warning(
        "wired-memory",
        "{bytes} of the memory of {node} are wired, and no process that this user may look at owns them.",
        (
            "Look for programs of other users that hold a model, such as a service, in Activity Monitor. If "
            "there is none, restart this Mac: a program that was killed with a model in memory may leave them, "
            "and nothing else frees them."
        ),
    )
    MAY_SLEEP = _info(
        "may-sleep",
        "{node} goes to sleep when its Mac is idle, as it runs with --allow-sleep.",
        "Start it without --allow-sleep, or run `sudo pmset -a sleep 0` there.",
    )
    OPEN_API = _warning(
        "open-api",
        "{node} answers requests from public addresses without an API key (--open-api).",
        "Unless a proxy in front of it checks its clients, start it with --api-key-file FILE.",
    )
    WHICH_NODE = _info("which-node", "{which}", "`pippin node` is always Pippin's.")
    ROSETTA = _error(
        "rosetta",
        "This terminal runs programs for Intel processors (Rosetta), and MLX does not work in them.",
        'In Finder: select the terminal\'s app, choose Get Info, clear "Open using Rosetta", and open it anew.',
    )
    NODE_UNREACHABLE = _warning(
        "node-unreachable",
        "{other} advertises itself by mDNS, but {node} cannot connect to it at {address}.",
        "Allow incoming TCP connections for Python in the firewall of {other}, or at a port set with --grpc-port.",
    )
    FIREWALL = _warning(
        "firewall",
        "The firewall of {node} blocks incoming connections to {program}, so other nodes can't reach it.",
        (
            "In System Settings > Network > Firewall > Options, allow incoming connections for it, and clear "
            '"Block all incoming connections".'
        ),
    )
    SLOW_BLAS = _info(
        "slow-blas",
        "{node} computes on the CPU with the BLAS that comes with MLX, which is slow.",
        "Start it with a tuned one: {install}`LD_PRELOAD={library} node`.",
    )
    POOL_FULL = _warning(
        "pool-full",
        "On {node}, work has waited for a {pool} thread for {seconds:.0f} s: all of them are busy.",
        (
            "Wait, or find in its log who sends so much. If that repeats, give clients API keys, or restrict "
            "--allow-model."
        ),
    )
