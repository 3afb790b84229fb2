# attack: make a file of an absurd size
# class: resources
# layer: resource_limits
# expect: held

def go():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with open("/tmp/sparse", "wb") as f:
            f.truncate(1 << 40)
        return "made"
    except OSError:
        return None
    finally:
        os.unlink("/tmp/sparse")
got = in_child(go)
verdict(got is not None, got)
