//! What a Go channel orders.
//!
//! The Go memory model: a send before the receive of its value is done, the
//! k-th receive before the (k+C)-th send is done where C is the capacity. Go's
//! own race detector keeps a clock for each slot of the buffer; so does this,
//! but only the beginning and the end of an operation are seen here, not the
//! moment between at which it took its place. As long as operations on a
//! channel do not overlap, counting them says which slot each uses. Operations
//! that overlap are taken to have met in every slot.
//!
//! Guarantees: every edge of the memory model is drawn. More are drawn where
//! operations overlap (always on channels without a buffer, and by `select`):
//! races can be missed there.

use crate::clock::VectorClock;
use std::collections::HashMap;

/// Which half of a channel an operation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Send,
    Receive,
}

/// What one end has published.
#[derive(Debug, Default)]
struct Half {
    /// By operations alone on the channel: slot and clock.
    slots: HashMap<u64, VectorClock>,
    /// By operations that may have used any slot.
    anywhere: VectorClock,
    /// Operations done, and begun (those that failed not).
    done: u64,
    begun: u64,
}

#[derive(Debug, Default)]
pub struct Channel {
    capacity: u64,
    sends: Half,
    receives: Half,
    closed: VectorClock,
    /// Operations under way: token, end, the clock it began with, and the
    /// slot, if it was alone so far.
    under_way: Vec<(u64, End, VectorClock, Option<u64>)>,
    next: u64,
}

impl Channel {
    pub fn new(capacity: u64) -> Channel {
        Channel {
            capacity,
            ..Channel::default()
        }
    }

    fn half(&mut self, end: End) -> &mut Half {
        match end {
            End::Send => &mut self.sends,
            End::Receive => &mut self.receives,
        }
    }

    /// An operation begins, by somebody with this clock. `certain` is false for
    /// one of several that only one will be made of.
    pub fn begin(&mut self, end: End, clock: &VectorClock, certain: bool) -> u64 {
        let capacity = self.capacity;
        let alone = certain && capacity > 0 && self.under_way.is_empty();
        let half = self.half(end);
        half.begun += 1;
        let slot = alone.then(|| half.done % capacity);
        match slot {
            Some(slot) => half.slots.entry(slot).or_default().join(clock),
            None => half.anywhere.join(clock),
        }
        // The others are not alone any more.
        for (_, end, clock, slot) in &mut self.under_way {
            if slot.take().is_some() {
                let half = match end {
                    End::Send => &mut self.sends,
                    End::Receive => &mut self.receives,
                };
                half.anywhere.join(clock);
            }
        }
        self.next += 1;
        self.under_way.push((self.next, end, clock.clone(), slot));
        self.next
    }

    /// The operation is over; what it has learnt.
    pub fn end(&mut self, token: u64, made: bool) -> VectorClock {
        let mut learnt = VectorClock::default();
        let Some(index) = self
            .under_way
            .iter()
            .position(|(known, ..)| *known == token)
        else {
            return learnt;
        };
        let (_, end, _, slot) = self.under_way.remove(index);
        let half = self.half(end);
        if !made {
            half.begun -= 1;
            return learnt;
        }
        half.done += 1;
        let begun = half.begun;
        let other = match end {
            End::Send => &self.receives,
            End::Receive => &self.sends,
        };
        // As many sends as there is room for wait for no receive.
        if end == End::Receive || begun > self.capacity {
            learnt.join(&other.anywhere);
            match slot {
                Some(slot) => {
                    if let Some(clock) = other.slots.get(&slot) {
                        learnt.join(clock);
                    }
                }
                None => other.slots.values().for_each(|clock| learnt.join(clock)),
            }
        }
        if end == End::Receive {
            learnt.join(&self.closed);
        }
        learnt
    }

    pub fn close(&mut self, clock: &VectorClock) {
        self.closed.join(clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::clock;

    fn whole(channel: &mut Channel, end: End, with: &VectorClock) -> VectorClock {
        let token = channel.begin(end, with, true);
        channel.end(token, true)
    }

    #[test]
    fn a_receive_learns_of_the_send_of_its_value() {
        let mut channel = Channel::new(2);
        whole(&mut channel, End::Send, &clock(0, 5));
        whole(&mut channel, End::Send, &clock(1, 7));
        let learnt = whole(&mut channel, End::Receive, &clock(2, 1));
        assert_eq!((learnt.get(0), learnt.get(1)), (5, 0));
        let learnt = whole(&mut channel, End::Receive, &clock(2, 2));
        assert_eq!((learnt.get(0), learnt.get(1)), (0, 7));
    }

    #[test]
    fn a_send_learns_of_the_receive_that_made_room() {
        let mut channel = Channel::new(1);
        assert_eq!(whole(&mut channel, End::Send, &clock(0, 1)).get(1), 0);
        whole(&mut channel, End::Receive, &clock(1, 4));
        assert_eq!(whole(&mut channel, End::Send, &clock(0, 2)).get(1), 4);
    }

    #[test]
    fn operations_that_overlap_meet_everywhere() {
        let mut channel = Channel::new(2);
        let one = channel.begin(End::Send, &clock(0, 5), true);
        let other = channel.begin(End::Send, &clock(1, 7), true);
        channel.end(other, true);
        channel.end(one, true);
        let learnt = whole(&mut channel, End::Receive, &clock(2, 1));
        assert_eq!((learnt.get(0), learnt.get(1)), (5, 7));
    }

    #[test]
    fn without_a_buffer_both_learn() {
        let mut channel = Channel::new(0);
        let send = channel.begin(End::Send, &clock(0, 5), true);
        let receive = channel.begin(End::Receive, &clock(1, 7), true);
        assert_eq!(channel.end(receive, true).get(0), 5);
        assert_eq!(channel.end(send, true).get(1), 7);
    }

    #[test]
    fn an_operation_that_failed_takes_no_slot() {
        let mut channel = Channel::new(1);
        whole(&mut channel, End::Send, &clock(0, 1));
        let failed = channel.begin(End::Send, &clock(1, 3), true);
        channel.end(failed, false);
        whole(&mut channel, End::Receive, &clock(2, 4));
        assert_eq!(whole(&mut channel, End::Send, &clock(0, 2)).get(2), 4);
    }
}
