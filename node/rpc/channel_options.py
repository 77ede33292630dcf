"""Settings of every gRPC channel and server of a node, and how much a peer may say at once."""

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""A prefill chunk of 2,048 tokens of a 16k-wide f32 model is 128 MB; gRPC's default of 4 MB is far too small."""

MAX_CONTROL_BYTES = 8 * 1024 * 1024
"""Of every message but frames: a prompt of a million tokens takes 4 MB, a chunk of a file 1 MB."""
MAX_STREAMS = 1024
"""Calls at once over one connection; a gateway keeps one for each request to a driver. More wait at their sender."""
MAX_CALLS = 8 * MAX_STREAMS
"""Calls at once over all connections; more are refused."""

MAX_CONNECTIONS = 1024
"""To the server; half of the descriptors that the process may have if those are few. A node keeps some four to another."""
MAX_CONNECTIONS_OF_ADDRESS = 128
"""Several nodes may share a machine."""
HANDSHAKE_S = 10
"""A caller that has not shown by then who it is is hung up on."""
IDLE_S = 300
"""So is one that has no call under way for so long. A node's next call connects anew by itself."""

_Options = tuple[tuple[str, int | str], ...]
_COMMON: _Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A link whose other end lost power sends no reset: ask every 5 s, give up after 5 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    # A node that was restarted is reached again within a second, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Two nodes must never share a port silently.
    ("grpc.so_reuseport", 0),
    # Proxies from the environment are for the internet, not for the next Mac.
    ("grpc.enable_http_proxy", 0),
)

CHANNEL_OPTIONS: _Options = (*_COMMON, ("grpc.max_receive_message_length", MAX_CONTROL_BYTES))
"""Nothing that is answered is as large as a frame."""

SERVER_OPTIONS: _Options = (
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_S),
    ("grpc.max_connection_idle_ms", 1000 * IDLE_S),
)
