"""A connection to JAX's coordinator that outlives it.

JAX aborts a process, with stack traces, as soon as its connection to the
coordinator breaks, which is where process 0 was killed. Through a relay it
hears nothing of that, and this library has the time to say what happened.
"""

import contextlib
import socket
import threading

_CONNECT_S = 10.0


def start_relay(address: str) -> str:
  """Relays connections to an address; returns the address to use instead.

  Args:
    address: 'host:port'.
  """
  host, _, port = address.rpartition(':')
  server = socket.create_server(('127.0.0.1', 0))
  target = host.strip('[]'), int(port)
  threading.Thread(target=_accept, args=(server, target), daemon=True).start()
  return f'localhost:{server.getsockname()[1]}'


def _accept(server: socket.socket, target: tuple[str, int]) -> None:
  while True:
    near, _ = server.accept()
    try:
      far = socket.create_connection(target, _CONNECT_S)
    except OSError:
      near.close()  # which is tried again
      continue
    far.settimeout(None)
    for source, sink in ((near, far), (far, near)):
      source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      threading.Thread(
        target=_copy, args=(source, sink, source is near), daemon=True
      ).start()


def _copy(source: socket.socket, sink: socket.socket, is_near: bool) -> None:
  with contextlib.suppress(OSError):
    while content := source.recv(1 << 16):
      sink.sendall(content)
  if is_near:  # this process hangs up; the coordinator never does
    with contextlib.suppress(OSError):
      sink.shutdown(socket.SHUT_RDWR)
    source.close()
    sink.close()
