//! IP addresses: public and non-public ones, and ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// The ranges outside the public internet: (address, bits). They are loopback, private networks, link-local networks
/// with the metadata services of clouds, carrier networks, tests and documentation, relays, multicast, and reserved
/// ranges.
const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // A host service of one large cloud, although the address is public.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
    (Ipv4Addr::BROADCAST, 32),
];

/// The public internet of IPv6 is 2000::/3 without these ranges: protocol assignments and tunnels (Teredo),
/// documentation, and 6to4. Tunnels and 6to4 carry other addresses inside. NAT64 and mapped addresses are outside
/// 2000::/3.
const NOT_PUBLIC_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    base: IpAddr,
    bits: u32,
}

impl Range {
    /// Parses `10.1.0.0/16`, `fd00::/8` or one address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (base, bits) = match text.split_once('/') {
            Some((base, bits)) => {
                // Only digits: `parse` would also accept a sign.
                let plain = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
                (base, Some(bits.parse::<u32>().ok().filter(|_| plain)?))
            }
            None => (text, None),
        };
        let base: IpAddr = base.parse().ok()?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Self { base, bits })
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => within_v4(address, base, self.bits),
            (IpAddr::V6(base), IpAddr::V6(address)) => within_v6(address, base, self.bits),
            _ => false,
        }
    }
}

fn within_v4(address: Ipv4Addr, base: Ipv4Addr, bits: u32) -> bool {
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    address.to_bits() & mask == base.to_bits() & mask
}

fn within_v6(address: Ipv6Addr, base: Ipv6Addr, bits: u32) -> bool {
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    address.to_bits() & mask == base.to_bits() & mask
}

/// Returns true for an address on the public internet. An IPv4-mapped IPv6 address counts as the IPv4 address.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !NOT_PUBLIC_V4
            .iter()
            .any(|(base, bits)| within_v4(address, *base, *bits)),
        IpAddr::V6(address) => {
            within_v6(address, Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3)
                && !NOT_PUBLIC_V6
                    .iter()
                    .any(|(base, bits)| within_v6(address, *base, *bits))
        }
    }
}

/// Returns true for an address on the public internet that does not belong to this machine.
pub(crate) fn is_outside(address: IpAddr) -> bool {
    is_public(address) && !is_own(address)
}

/// Returns true for an address of this machine, which may be public. Services of the host listen behind it. Only a
/// local address can be bound.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_public_addresses_are_recognised() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.19.0.1",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::a00:1",
            "100::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1",
            "2a00:1450:4001::5",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn ranges_contain_their_addresses_only() {
        let range = Range::parse("10.1.0.0/16").unwrap();
        assert!(range.contains("10.1.255.1".parse().unwrap()) && !range.contains("10.2.0.1".parse().unwrap()));
        assert!(range.contains("::ffff:10.1.2.3".parse().unwrap()));
        assert!(Range::parse("0.0.0.0/0").unwrap().contains("9.9.9.9".parse().unwrap()));
        assert!(!Range::parse("::/0").unwrap().contains("9.9.9.9".parse().unwrap()));
        assert!(Range::parse("fd00::/8").unwrap().contains("fd12::1".parse().unwrap()));
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "x/8",
            "010.0.0.1",
            "::/129",
        ] {
            assert_eq!(Range::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_machines_own_addresses_are_known() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("203.0.113.7".parse().unwrap()));
    }
}
