# attack: have the file tool read a file that grows faster than it is read
# class: workspace
# layer: file_tools
# expect: held

# in: a
grower = os.fork()
if grower == 0:
    end = time.monotonic() + 3
    with open("/home/user/growing", "ab", buffering=0) as f:
        while time.monotonic() < end and f.tell() < 200 << 20:
            f.write(b"line\n" * 20000)
    os._exit(0)
time.sleep(0.05)
# tool: read_file {"path": "growing"}
# in: a
os.kill(grower, 9), os.waitpid(grower, 0)
verdict(len(ANSWER["text"]) > 100000 or ANSWER["took_ms"] > 5000, len(ANSWER["text"]), ANSWER["took_ms"])
