# attack: find the sockets of Docker, systemd, D-Bus, X11, ssh-agent and nscd
# class: network
# layer: private_root
# expect: held
# unproven: only some hosts have them

finds(p for p in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/tmp/.X11-unix/X0", "/run/nscd/socket", "/run/podman/podman.sock", "/dev/log", "/run/user/0/bus") if os.path.exists(p))
