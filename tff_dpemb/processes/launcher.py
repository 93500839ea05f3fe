"""Becomes a child process that dies with its parent, alone on its network.

A script of the standard library alone, run as `python -I -S <this file>
parent_pid socket_name port command...` by `tff_dpemb.processes.children`. With a socket
name the command runs in a network namespace of its own, where it can reach and
be reached by nobody; what listens on `port` there is offered, to processes of
the same user only, on the abstract Unix socket of that name. Such a socket has
no file, so nothing is left behind however the program ends.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_SPLICE_BYTES = 1 << 20
_START_SECONDS = 60.0
_CANNOT_SEAL = 71  # exit code: this kernel allows no namespace


def main(arguments: list[str]) -> None:
  """Runs the command in place of this process."""
  parent, name, port, *command = arguments
  if name:
    # A socket belongs to the network that it was made in: this one.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind('\0' + name)
    listener.listen(64)
    try:
      enter_own_network()
    except OSError:
      os._exit(_CANNOT_SEAL)
    # After the change of credentials, which clears the signal.
    die_with(int(parent))
    child = os.getpid()
    if os.fork() == 0:
      die_with(child)
      offer(listener, int(port))
    listener.close()
  else:
    die_with(int(parent))
  os.execv(command[0], command)


def die_with(parent: int) -> None:
  """Asks the kernel to kill this process when its parent dies."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
  if os.getppid() != parent:  # It died before.
    os._exit(1)


def enter_own_network() -> None:
  """Moves this process into a network that has a loopback device only.

  Raises:
    OSError: The kernel or the container forbids it.
  """
  user, group = os.getuid(), os.getgid()
  if user == _overflow_uid():
    # Whom the namespace does not know would look like ourselves: see `offer`.
    raise OSError(errno.EPERM, 'nobody cannot be told from others')
  libc = ctypes.CDLL(None, use_errno=True)
  if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
    raise OSError(ctypes.get_errno(), 'unshare')
  for file, text in (
    ('setgroups', 'deny'),
    ('uid_map', f'{user} {user} 1'),
    ('gid_map', f'{group} {group} 1'),
  ):
    with open(f'/proc/self/{file}', 'w', encoding='ascii') as target:
      target.write(text)
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
    request = struct.pack('16sh14x', b'lo', 0)
    answer = fcntl.ioctl(device, _SIOCGIFFLAGS, request)
    flags = struct.unpack('16sh14x', answer)[1] | _IFF_UP
    fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack('16sh14x', b'lo', flags))


def _overflow_uid() -> int:
  """Returns the user that those of other namespaces are shown as."""
  with open('/proc/sys/kernel/overflowuid', encoding='ascii') as file:
    return int(file.read())


def offer(listener: socket.socket, port: int) -> None:
  """Forwards what connects to `listener` to 127.0.0.1:port, for ever."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  while True:
    client, _ = listener.accept()
    credentials = client.getsockopt(
      socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize('3i')
    )
    if struct.unpack('3i', credentials)[1] != os.getuid():
      client.close()
      continue
    threading.Thread(target=_join, args=(client, port), daemon=True).start()


def _join(client: socket.socket, port: int) -> None:
  with client, contextlib.suppress(OSError):
    with _connect(port) as server:
      threads = [
        threading.Thread(target=_forward, args=ends, daemon=True)
        for ends in ((client, server), (server, client))
      ]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()


def _connect(port: int) -> socket.socket:
  """Returns a connection to what listens, as soon as it does."""
  deadline = time.monotonic() + _START_SECONDS
  while True:
    try:
      server = socket.create_connection(('127.0.0.1', port))
      server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      return server
    except ConnectionRefusedError:
      if time.monotonic() > deadline:
        raise
      time.sleep(0.01)


def _forward(source: socket.socket, target: socket.socket) -> None:
  """Moves bytes in the kernel, from one socket to the other."""
  reader, writer = os.pipe()
  try:
    while count := os.splice(source.fileno(), writer, _SPLICE_BYTES):
      while count:
        count -= os.splice(reader, target.fileno(), count)
  except OSError:
    pass
  finally:
    os.close(reader)
    os.close(writer)
    for end, how in ((source, socket.SHUT_RD), (target, socket.SHUT_WR)):
      with contextlib.suppress(OSError):
        end.shutdown(how)


if __name__ == '__main__':
  main(sys.argv[1:])
