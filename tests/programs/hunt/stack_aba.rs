// A lock-free stack of three nodes by index: between the load of a top's
// successor and the exchange, others take two nodes and put the first back.
// The exchange succeeds, and a node that somebody owns is on the stack again.
// HUNT fails: exit 101
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

const NONE: usize = usize::MAX;
const NODES: usize = 3;

static TOP: AtomicUsize = AtomicUsize::new(0);
static NEXT: [AtomicUsize; NODES] =
    [AtomicUsize::new(1), AtomicUsize::new(2), AtomicUsize::new(NONE)];
static OWNED: [AtomicUsize; NODES] = [const { AtomicUsize::new(0) }; NODES];

fn work(rounds: u64) -> u64 {
    let factor: u64 = std::env::var("HUNT_WORK")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    (0..rounds * 100 * factor).fold(1, |value: u64, round| {
        std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(round))
    })
}

fn pop() -> Option<usize> {
    loop {
        let top = TOP.load(SeqCst); // DECIDES
        if top == NONE {
            return None;
        }
        let next = NEXT[top].load(SeqCst); // DECIDES
        if TOP.compare_exchange(top, next, SeqCst, SeqCst).is_ok() { // DECIDES
            assert_eq!(OWNED[top].swap(1, SeqCst), 0, "node {top} is somebody's already");
            return Some(top);
        }
    }
}

fn push(node: usize) {
    OWNED[node].store(0, SeqCst);
    loop {
        let top = TOP.load(SeqCst); // DECIDES
        NEXT[node].store(top, SeqCst); // DECIDES
        if TOP.compare_exchange(top, node, SeqCst, SeqCst).is_ok() { // DECIDES
            return;
        }
    }
}

fn main() {
    let taker = thread::spawn(|| {
        work(200);
        let first = pop();
        let second = pop();
        (first, second)
    });
    let juggler = thread::spawn(|| {
        work(100);
        let first = pop();
        let second = pop();
        if let Some(node) = first {
            push(node);
        }
        work(100);
        second
    });
    let (first, second) = taker.join().unwrap();
    let kept = juggler.join().unwrap();
    assert!(kept.is_none() || (first != kept && second != kept));
}
