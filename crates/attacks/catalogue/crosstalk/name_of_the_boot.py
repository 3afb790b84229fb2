# attack: detect by the kernel's boot ID that two sandboxes share a machine
# class: crosstalk
# layer: private_proc
# expect: held
# unproven: the test compares each sandbox's boot ID with the machine's, which only processes outside know
# containers: it is hidden, not replaced

words = [text_of("/proc/sys/kernel/random/boot_id").strip() for _ in range(2)]
import uuid
verdict(words[0] != words[1] or str(uuid.UUID(words[0])) != words[0] or words[0] == CANARIES["boot_id"], words)
