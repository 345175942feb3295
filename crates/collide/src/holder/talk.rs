//! The holder between the front end and the kernel: orders, events told, and how
//! long it may sleep.

use super::ptrace::Tid;
use super::running::Running;
use super::space::Space;
use super::watch::Scope;
use super::{Holder, ptrace, task, wake};
use crate::planted::LIVE;
use crate::wire::{Event, Order, Purpose};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Waits shorter than this are spent spinning: a sleep of this length
/// overshoots by as much again, and the held thread's CPU is free anyway.
pub(super) const SPIN: Duration = Duration::from_micros(60);

/// Going to sleep and waking up take this long.
const WAKING_UP: Duration = Duration::from_micros(10);

/// Costs and finished breakpoints are told to the front end this often.
pub(super) const TELL: Duration = Duration::from_millis(80);

/// The same while nothing is sampled: only safety is looked at.
pub(super) const TELL_IDLE: Duration = Duration::from_millis(400);

/// Turns per second from which on events that stay open cost the program more
/// than opening them for each sample: half a microsecond each.
const HECTIC: f64 = 40_000.0;

/// Turns per second up to which recording them is cheap enough.
const CALM: f64 = 10_000.0;

/// With more threads than this the front end may have to wait for its turn.
const CROWD: usize = 32;

/// Breakpoints whose time is over may stand this much longer, so that many are
/// removed at one go.
const LINGER: Duration = Duration::from_millis(5);

/// How long letting go may take before the holder gives up waiting for
/// threads that do not stop.
pub(super) const LETTING_GO: Duration = Duration::from_secs(10);

impl Holder {
    pub(super) fn tell(&mut self, all: bool) {
        let now = Instant::now();
        self.last_told = now;
        // In case the news of them came when nobody slept.
        self.obey();
        self.keep_safe(self.last_told);
        if !all {
            self.learn_abilities();
        }
        if self.flights.is_empty() {
            self.suit_events(now);
        }
        if self.tasks.len() > CROWD
            && let Some(front) = self.front.take()
        {
            super::begin::hurry_front_end(front);
        }
        let ended = std::mem::take(&mut self.ended);
        if !ended.is_empty() {
            self.link.send(&Event::Ended(ended));
        }
        let standing = self.spaces.values().map(Space::standing).sum::<usize>();
        self.link.send(&Event::Cost {
            cpu: task::own_cpu_time(),
            stopped: self.stopped,
            bounced: self.bounced,
            armed: self.armed,
            overlapped: self.overlapped,
            standing: standing as u32,
            queued: self.live.len() as u32,
        });
        if all {
            self.link.flush();
        }
    }

    /// Makes data breakpoints, and knowing who is on a CPU, suit the program.
    fn suit_events(&mut self, now: Instant) {
        let threads = self.tasks.len();
        if self.per_second > 0 {
            self.switching.look(self.tasks.keys().copied(), now);
        }
        let switches = self.switching.per_second(threads);
        self.watch.suit(threads, switches > HECTIC);
        self.can_follow = switches < CALM && self.watch.stays_per_thread(threads);
        if !self.can_follow {
            self.running = Running::default();
        }
    }

    /// Tells how data breakpoints work here, once that is known.
    pub(super) fn learn_abilities(&mut self) {
        if !self.watch.settle() {
            return;
        }
        self.link.send(&Event::Holding {
            scope: match self.watch.scope() {
                Scope::PerCpu => 0,
                Scope::PerThread => 1,
                Scope::None => 2,
            },
            sees_kernel: self.watch.sees_kernel(),
            why_not: self.watch.why_not().unwrap_or_default().to_string(),
        });
    }

    pub(super) fn obey(&mut self) {
        let orders = match self.link.receive::<Order>() {
            Ok(orders) => orders,
            Err(error) => {
                self.notes.push(error.to_string());
                self.stopping = true;
                return;
            }
        };
        for order in orders {
            match order {
                Order::Picks(picks) => {
                    for pick in picks {
                        if pick.purpose == Purpose::Live {
                            if self.live.len() < 4 * LIVE {
                                self.live.push_back(pick);
                            }
                        } else {
                            self.crowd.push_back(pick);
                        }
                    }
                }
                Order::Pace {
                    per_second,
                    share,
                    waits,
                    short,
                } => {
                    self.per_second = per_second;
                    self.share = share;
                    self.purse.set_share(f64::from(waits) * 1e-6);
                    self.short = Duration::from_micros(u64::from(short));
                }
                Order::Core(folder) => self.core_folder = Some(folder),
                Order::Stop => self.stopping = true,
            }
        }
        if self.link.ended() {
            self.stopping = true;
        }
    }

    /// How often news are told: seldom while nothing is planted.
    pub(super) fn tell_every(&self) -> Duration {
        if self.per_second == 0 && self.expiry.is_empty() && self.ended.is_empty() {
            TELL_IDLE
        } else {
            TELL
        }
    }

    /// Waits for the next thing to happen.
    pub(super) fn wait(&mut self, now: Instant) {
        let mut until = self.last_told + self.tell_every();
        for flight in &self.flights {
            until = until.min(flight.next_look());
        }
        if self.per_second > 0 && !self.live.is_empty() {
            until = until.min(self.next_live);
        }
        if let Some(Reverse((expiry, _, _))) = self.expiry.peek() {
            until = until.min(*expiry + LINGER);
        }
        if !self.crowd.is_empty() || self.has_to_follow() {
            until = now;
        }
        let nap = until.saturating_duration_since(now);
        if nap.is_zero() {
            // Much to do: look for orders now and then only.
            if self.flights.is_empty() {
                self.look_for_orders();
            }
            return;
        }
        if self.flights.iter().any(|flight| flight.naps) && nap < SPIN {
            let shorter = nap.saturating_sub(WAKING_UP);
            std::thread::sleep(shorter.max(Duration::from_micros(1)));
            return;
        }
        if !self.flights.is_empty() && nap < SPIN {
            while Instant::now() < until {
                if self.watch.any_hit() {
                    break;
                }
                if let Some(news) = self.next_news() {
                    self.changed(news);
                    break;
                }
            }
            return;
        }
        self.alarm.set(until, now);
        if let Some(news) = self.await_news() {
            self.changed(news);
        }
        self.look_for_orders();
    }

    fn look_for_orders(&mut self) {
        if wake::news() {
            self.obey();
        }
        self.link.flush();
    }

    /// Puts everything back and lets every thread go. Says how many threads
    /// could not be seen to be clear of breakpoints in time.
    pub(super) fn let_go(&mut self) -> u32 {
        let now = Instant::now();
        self.live.clear();
        self.crowd.clear();
        for arrival in std::mem::take(&mut self.arrivals) {
            self.run_on(arrival.tid, 0);
        }
        for space in self.spaces.values_mut() {
            space.unplant_all(&mut self.table, now);
        }
        // Nothing is left to put back after this process.
        self.brake = None;
        self.end_all_flights();
        self.detaching = true;
        // A thread that sleeps in the kernel cannot be on its way out of a
        // breakpoint. The others are stopped once, which shows where they
        // are, and let go one by one.
        let mut asked = HashSet::new();
        loop {
            while let Some(news) = self.next_news() {
                self.changed(news);
            }
            let mut open = 0;
            let tids: Vec<Tid> = self.tasks.keys().copied().collect();
            for tid in tids {
                if self.detached.contains(&tid) {
                    continue;
                }
                let sleeps = matches!(task::state(tid), Some('S' | 'D' | 'T' | 'I'))
                    && !task::trap_pending(tid);
                if sleeps {
                    continue;
                }
                open += 1;
                if asked.insert(tid) {
                    let _ = ptrace::interrupt(tid);
                }
            }
            if open == 0 || now.elapsed() > LETTING_GO {
                return open;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Puts SIGTRAP back into the blocked signals of a thread that had blocked
/// everything: the kernel unblocks it to deliver the trap.
pub(super) fn repair_mask(tid: Tid) {
    const OTHERS: u64 =
        bit(libc::SIGILL) | bit(libc::SIGBUS) | bit(libc::SIGFPE) | bit(libc::SIGSEGV);
    if let Ok(mask) = ptrace::signal_mask(tid)
        && mask & OTHERS == OTHERS
        && mask & bit(libc::SIGTRAP) == 0
    {
        let _ = ptrace::set_signal_mask(tid, mask | bit(libc::SIGTRAP));
    }
}

pub(super) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
