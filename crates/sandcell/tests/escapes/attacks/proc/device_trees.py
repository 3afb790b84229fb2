# attack: list what /proc tells of devices and file systems
# class: proc
# layer: private_proc
# expect: held

def names(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
finds(p for p in ("acpi", "bus", "driver", "fs", "irq", "scsi") if names("/proc/" + p))
