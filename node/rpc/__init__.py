"""gRPC between nodes: server, client, links of frames, TLS from the secret, and limits on what peers may say."""
