import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which Linux and macOS take the source ports of outgoing connections: a client that
# retries against a stopped server inside that range sooner or later connects to itself, and then holds the port.
LOWEST, HIGHEST = 15_000, 32_000


def free_port() -> int:
    """Return a loopback port on which nothing listens now and no outgoing connection will be given."""
    while True:
        port = random.SystemRandom().randint(LOWEST, HIGHEST)
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
