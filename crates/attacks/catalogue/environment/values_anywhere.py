# attack: find the server's secret in any readable environment, command line or memory map
# class: environment
# layer: empty_environment
# expect: held
# also_off: hidden_agent

finds(path for pid in os.listdir("/proc") if pid.isdigit() for path in (f"/proc/{pid}/environ", f"/proc/{pid}/cmdline", f"/proc/{pid}/task/{pid}/environ", f"/proc/{pid}/stack")
      if CANARIES["secret"] in text_of(path))
