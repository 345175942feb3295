// CLEAN
// Vectors that grow, strings, maps, boxes handed from thread to thread.
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

static mut TICK: u32 = 0;

fn work(number: u32, all: &Mutex<Vec<String>>) {
    // SAFETY: it is not; this is the race that lets both orders be played.
    unsafe { TICK = number } // RACE tick: any
    let mut names = Vec::new();
    for index in 0..40 {
        names.push(format!("name {index} of {number}"));
    }
    let mut map: HashMap<String, Box<[u8]>> = HashMap::new();
    for name in &names {
        map.insert(name.clone(), name.as_bytes().into());
    }
    let sorted: BTreeMap<_, _> = map.into_iter().collect();
    let longest = sorted.values().map(|bytes| bytes.len()).max();
    all.lock().unwrap().push(format!("{longest:?}"));
}

fn main() {
    let all = Arc::new(Mutex::new(Vec::new()));
    let (sender, receiver) = channel::<Box<[u64]>>();
    let threads: Vec<_> = (1..=2)
        .map(|number| {
            let (all, sender) = (all.clone(), sender.clone());
            std::thread::spawn(move || {
                work(number, &all);
                sender.send(vec![u64::from(number); 33].into()).unwrap();
            })
        })
        .collect();
    drop(sender);
    let sum: u64 = receiver.iter().flat_map(|boxed| boxed.to_vec()).sum();
    for thread in threads {
        thread.join().unwrap();
    }
    // SAFETY: all threads have ended.
    println!("{sum} {}", unsafe { TICK });
}
