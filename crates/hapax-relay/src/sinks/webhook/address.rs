//! Which addresses a webhook may have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address cannot belong to a host on the internet: a webhook there could reach into the
/// relay's own network.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    a == 0
        || a >= 240
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        // Carrier-grade NAT, protocol assignments, benchmarks.
        || a == 100 && (64..128).contains(&b)
        || (a, b, c) == (192, 0, 0)
        || a == 198 && (b == 18 || b == 19)
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let inner = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match parts {
        // Unspecified, loopback, IPv4-mapped and IPv4-compatible addresses.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => {
            parts[5] == 0 && high == 0 || is_private_v4(inner(high, low))
        }
        // NAT64 and 6to4 addresses, which embed an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_private_v4(inner(high, low)),
        [0x2002, high, low, ..] => is_private_v4(inner(high, low)),
        [first, second, ..] => {
            // Unique local, link-local, site-local and multicast addresses; Teredo; documentation;
            // local-use NAT64.
            matches!(first, 0xfc00..=0xfdff | 0xfe80..=0xfeff | 0xff00..=0xffff)
                || first == 0x2001 && (second == 0 || second == 0xdb8)
                || first == 0x64 && second == 0xff9b
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_recognised_in_every_notation() {
        for private in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.2.1",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "fec0::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "93.184.216.34",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "100.128.0.1",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
