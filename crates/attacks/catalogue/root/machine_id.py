# attack: find files in /etc that identify the machine
# class: root
# layer: private_root
# expect: held

finds(n for n in ("machine-id", "fstab", "hostname", "ssh", "shadow", "sudoers", "crontab", "cron.d", "systemd", "apt", "ssl/private", "docker", "kubernetes", "environment")
      if os.path.exists("/etc/" + n) and not (n == "hostname" and open("/etc/hostname").read() == "sandcell\n"))
