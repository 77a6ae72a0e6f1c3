//! Connections that have not proved anything yet: how many there may be, and which one makes room
//! for a new one. Owns no socket and no clock; how long a connection may take is its holder's
//! business.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Names a connection while it is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingTicket(u64);

/// What became of a pool with a new connection.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the connection that made room has to be closed"]
pub struct Admission<T> {
    /// The new connection.
    pub ticket: PendingTicket,
    /// The one that made room for it, if the pool was full. Nobody settles it any more.
    pub evicted: Option<T>,
}

/// The pending connections of a listener: each with what closes it. A full pool makes room with the
/// oldest connection of the source that has most of them, so that one source cannot keep out
/// another, however many it opens.
#[derive(Debug)]
pub struct Pending<T> {
    capacity: usize,
    next: u64,
    /// By age: tickets ascend. At most `capacity` after each call.
    sources: BTreeMap<IpAddr, BTreeMap<PendingTicket, T>>,
    length: usize,
}

impl<T> Pending<T> {
    /// A pool of this capacity; of one connection at least.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            next: 0,
            sources: BTreeMap::new(),
            length: 0,
        }
    }

    /// Takes a new connection in. It is never the one that makes room.
    pub fn admit(&mut self, source: IpAddr, connection: T) -> Admission<T> {
        let ticket = PendingTicket(self.next);
        self.next += 1;
        let of_source = self.sources.entry(source.to_canonical()).or_default();
        of_source.insert(ticket, connection);
        self.length += 1;
        let evicted = (self.length > self.capacity).then(|| self.evict());
        Admission {
            ticket,
            evicted: evicted.flatten(),
        }
    }

    /// A connection has proved what it had to, or has ended. None if it had made room for another
    /// before.
    pub fn settle(&mut self, source: IpAddr, ticket: PendingTicket) -> Option<T> {
        let source = source.to_canonical();
        let of_source = self.sources.get_mut(&source)?;
        let connection = of_source.remove(&ticket)?;
        if of_source.is_empty() {
            self.sources.remove(&source);
        }
        self.length -= 1;
        Some(connection)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Removes the oldest of the largest source; of the one whose oldest has waited longest, where
    /// several are largest.
    fn evict(&mut self) -> Option<T> {
        let oldest = |of_source: &BTreeMap<PendingTicket, T>| of_source.keys().next().copied();
        let sizes = self.sources.iter().filter_map(|(source, of_source)| {
            let ticket = oldest(of_source)?;
            Some((of_source.len(), std::cmp::Reverse(ticket), *source))
        });
        let (_, std::cmp::Reverse(ticket), source) = sizes.max()?;
        self.settle(source, ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn source(number: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, number))
    }

    /// A pool that is full of so many connections of each source, in turns.
    fn full(sources: u8, of_each: usize) -> Pending<(u8, usize)> {
        let mut pool = Pending::new(usize::from(sources) * of_each);
        for turn in 0..of_each {
            for number in 0..sources {
                let admitted = pool.admit(source(number), (number, turn));
                assert_eq!(admitted.evicted, None);
            }
        }
        pool
    }

    #[test]
    fn a_full_pool_drops_the_oldest_of_the_largest_source() {
        let mut pool = full(4, 2);
        for turn in 0..3 {
            // The first of them makes source 1 the largest one.
            let evicted = pool.admit(source(1), (1, 2 + turn)).evicted;
            assert_eq!(evicted, Some((1, turn)));
        }
        assert_eq!(pool.len(), 8);
    }

    #[test]
    fn of_sources_of_one_size_the_oldest_connection_goes() {
        let mut pool = full(4, 2);
        assert_eq!(pool.admit(source(9), (9, 0)).evicted, Some((0, 0)));
        assert_eq!(pool.admit(source(8), (8, 0)).evicted, Some((1, 0)));
    }

    #[test]
    fn a_connection_stays_however_many_others_come_from_sources_that_have_more() {
        for attackers in [1u8, 50] {
            let mut pool = Pending::new(64);
            let honest = source(255);
            let ticket = pool.admit(honest, 255).ticket;
            for connection in 0..5_000usize {
                let number = (connection % usize::from(attackers)) as u8;
                let evicted = pool.admit(source(number), number).evicted;
                assert_ne!(evicted, Some(255), "after {connection}");
            }
            assert_eq!(pool.settle(honest, ticket), Some(255));
            assert_eq!(pool.len(), 63);
        }
    }

    #[test]
    fn what_is_settled_makes_room_and_is_settled_once() {
        let mut pool = Pending::new(2);
        let first = pool.admit(source(1), 'a').ticket;
        let second = pool.admit(source(1), 'b').ticket;
        assert_eq!(pool.settle(source(2), first), None);
        assert_eq!(pool.settle(source(1), first), Some('a'));
        assert_eq!(pool.settle(source(1), first), None);
        assert_eq!(pool.admit(source(2), 'c').evicted, None);
        let third = pool.admit(source(1), 'd');
        assert_eq!(third.evicted, Some('b'));
        assert_eq!(pool.settle(source(1), second), None, "it made room");
        assert_eq!(pool.len(), 2);
    }

    #[test]
    fn an_address_is_one_source_in_both_of_its_forms() {
        let mut pool = Pending::new(3);
        let plain = Ipv4Addr::new(10, 0, 0, 1);
        let mapped = IpAddr::V6(plain.to_ipv6_mapped());
        let other = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let first = pool.admit(mapped, 'a').ticket;
        assert_eq!(pool.admit(other, 'b').evicted, None);
        assert_eq!(pool.admit(IpAddr::V4(plain), 'c').evicted, None);
        assert_eq!(pool.admit(other, 'd').evicted, Some('a'));
        assert_eq!(pool.settle(IpAddr::V4(plain), first), None);
    }

    #[test]
    fn a_pool_has_room_for_one_at_least() {
        let mut pool = Pending::new(0);
        assert!(pool.is_empty());
        assert_eq!(pool.admit(source(1), 'a').evicted, None);
        assert_eq!(pool.admit(source(1), 'b').evicted, Some('a'));
        assert_eq!(pool.len(), 1);
    }
}
