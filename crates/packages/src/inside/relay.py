# Runs inside the installer's sandbox: a port of its loopback interface that leads through descriptors 3 and 4 to the
# broker outside. A frame is connection (u32), length (u32), bytes; length 0 ends that direction. The first frame, of
# connection 0, is the port's number. Outwards, a connection with the highest bit set says how many bytes of it (u32) the
# program here has taken: outside sends no more than a window ahead, and one connection that is not read holds up no other.
# Standard library only, and as little of it as possible.
import os, queue, socket, struct, threading

TAKEN = 1 << 31
outlet = threading.Lock()
connections = {}


def send(connection, data):
    frame = memoryview(struct.pack("<II", connection, len(data)) + data)
    with outlet:
        while frame:
            frame = frame[os.write(4, frame) :]


def take(size):
    data = b""
    while len(data) < size:
        more = os.read(3, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def outwards(connection, sock):
    try:
        while True:
            data = sock.recv(32768)
            if not data:
                break
            send(connection, data)
    except OSError:
        pass
    send(connection, b"")


def inwards(connection, sock, waiting):
    alive = True
    while True:
        data = waiting.get()
        if not data:
            break
        try:
            if alive:
                sock.sendall(data)
        except OSError:
            alive = False
        send(connection | TAKEN, struct.pack("<I", len(data)))
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()


def accept(server):
    number = 0
    while True:
        sock, _ = server.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number += 1
        waiting = queue.SimpleQueue()
        connections[number] = waiting
        threading.Thread(target=outwards, args=(number, sock), daemon=True).start()
        threading.Thread(target=inwards, args=(number, sock, waiting), daemon=True).start()


server = socket.create_server(("127.0.0.1", 0), backlog=128)
threading.Thread(target=accept, args=(server,), daemon=True).start()
send(0, str(server.getsockname()[1]).encode())
while True:
    connection, size = struct.unpack("<II", take(8))
    data = take(size)
    waiting = connections.get(connection)
    if waiting is not None:
        waiting.put(data)
        if not data:
            del connections[connection]
