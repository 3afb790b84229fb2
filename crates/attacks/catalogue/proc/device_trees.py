# attack: list the folders of devices and file systems in /proc
# class: proc
# layer: private_proc
# expect: held

def names(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
finds(p for p in ("acpi", "bus", "driver", "fs", "irq", "scsi") if names("/proc/" + p))
