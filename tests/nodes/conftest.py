from collections.abc import Iterator

import pytest

from tests.conftest import MODEL, Cluster, running_cluster


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that found each other by mDNS and split the model, for tests that leave them unchanged."""
    with running_cluster(tmp_path_factory.mktemp("three")) as cluster:
        options = ("--model", MODEL, "--stages", "3", "--fail-after", "20")  # a busy machine's silence is nobody's end
        cluster.ready(*cluster.start(3, *options), stages=3)
        yield cluster
