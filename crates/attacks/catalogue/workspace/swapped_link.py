# attack: swap a file for a link while the file tool opens it, again and again
# class: workspace
# layer: file_tools
# expect: held

# in: a
open("/home/user/real", "w").write("real")
def swap():
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for target in ("real", "/etc/shadow", CANARIES["secret_file"], "/proc/1/environ", "/proc/self/fd/0"):
            os.symlink(target, "/home/user/next")
            os.rename("/home/user/next", "/home/user/swapped")
swapper = os.fork()
if swapper == 0:
    swap()
    os._exit(0)
answers = []
# tool: read_file {"path": "swapped"}
# in: a
answers.append(ANSWER["text"])
# tool: read_file {"path": "swapped"}
# in: a
answers.append(ANSWER["text"])
# tool: read_file {"path": "swapped"}
# in: a
answers.append(ANSWER["text"])
# tool: write_file {"path": "swapped", "content": "w"}
# in: a
os.kill(swapper, 9), os.waitpid(swapper, 0)
finds(a for a in answers if CANARIES["secret"] in a or "root:" in a)
