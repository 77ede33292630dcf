"""People and programs set wall clocks, forwards and backwards. So what the product measures and waits for goes by monotonic clocks."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
READS = re.compile(
    r"\btime\.(time|time_ns|localtime|gmtime|strftime|ctime)\(|\bdatetime\.(now|utcnow|today)\(|\b\.st_[acm]time(_ns)?\b"
)
ALLOWED = {
    "api/ollama/answer.py": "a moment that clients are told",
    "api/ollama/models.py": "moments that clients are told",
    "api/openai/reply.py": "a moment that clients are told",
    "api/responses/output.py": "moments that clients are told",
    "node/check/command.py": "tells a person how long the check took",
    "node/cli/wait.py": "how long a refusal may still pass; never longer than 10 s, whatever the clocks say",
    "node/daemon/network.py": "the moment of the start, for people",
    "node/daemon/serving.py": "a moment that clients are told",
    "node/host/certificate.py": "compared for equality only",
    "node/host/crashes.py": "the moment of a crash, for people",
    "node/host/failures.py": "a pause that outlives the process; never longer than 10 minutes, whatever the clock says",
    "node/kv/store.py": "the order in which files of earlier processes go",
    "node/ring/driver.py": "a moment that clients are told",
    "node/text/tokenizer_files.py": "folders of processes that are gone for an hour",
    "node/model/layouts.py": "compared for equality only",
}


def test_only_what_is_told_or_outlives_a_process_goes_by_the_wall_clock() -> None:
    files = [path for room in ("api", "node") for path in (ROOT / room).rglob("*.py")]
    reading = {str(path.relative_to(ROOT)) for path in files if READS.search(path.read_text())}
    assert reading == ALLOWED.keys()
