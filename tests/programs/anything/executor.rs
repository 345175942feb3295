// A work-stealing executor with wakers and a reactor thread, as the async
// run-times of Rust are built.
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    job: Mutex<Option<Job>>,
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    queue: Mutex<VecDeque<Arc<Task>>>,
    changed: Condvar,
    live: AtomicUsize,
    timers: Mutex<Vec<(Instant, Waker)>>,
    timer_changed: Condvar,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let pool = self.pool.clone();
        pool.queue.lock().unwrap().push_back(self);
        pool.changed.notify_one();
    }
}

impl Pool {
    fn spawn(self: &Arc<Self>, job: impl Future<Output = ()> + Send + 'static) {
        self.live.fetch_add(1, Ordering::SeqCst);
        let task = Task { job: Mutex::new(Some(Box::pin(job))), pool: self.clone() };
        Arc::new(task).wake();
    }

    fn work(self: &Arc<Self>) {
        while self.live.load(Ordering::SeqCst) > 0 {
            let mut queue = self.queue.lock().unwrap();
            let Some(task) = queue.pop_front() else {
                let _ = self.changed.wait_timeout(queue, Duration::from_millis(5)).unwrap();
                continue;
            };
            drop(queue);
            let waker = Waker::from(task.clone());
            let mut slot = task.job.lock().unwrap();
            if let Some(mut job) = slot.take() {
                match job.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => *slot = Some(job),
                    Poll::Ready(()) => {
                        if self.live.fetch_sub(1, Ordering::SeqCst) == 1 {
                            self.changed.notify_all();
                            self.timer_changed.notify_all();
                        }
                    }
                }
            }
        }
    }

    fn reactor(self: &Arc<Self>) {
        let mut timers = self.timers.lock().unwrap();
        while self.live.load(Ordering::SeqCst) > 0 {
            let now = Instant::now();
            let mut due = Vec::new();
            timers.retain(|(when, waker)| {
                if *when <= now {
                    due.push(waker.clone());
                }
                *when > now
            });
            if !due.is_empty() {
                drop(timers);
                due.into_iter().for_each(Waker::wake);
                timers = self.timers.lock().unwrap();
                continue;
            }
            timers = self.timer_changed.wait_timeout(timers, Duration::from_millis(2)).unwrap().0;
        }
    }
}

struct Sleep {
    until: Instant,
    pool: Arc<Pool>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.until {
            return Poll::Ready(());
        }
        self.pool.timers.lock().unwrap().push((self.until, context.waker().clone()));
        self.pool.timer_changed.notify_one();
        Poll::Pending
    }
}

fn main() {
    let pool = Arc::new(Pool::default());
    let total = Arc::new(AtomicUsize::new(0));
    for i in 0..500usize {
        let (inner, total) = (pool.clone(), total.clone());
        pool.spawn(async move {
            for k in 0..3 {
                let until = Instant::now() + Duration::from_micros((i as u64 * 37 + k) % 5000);
                Sleep { until, pool: inner.clone() }.await;
                total.fetch_add(i, Ordering::Relaxed);
            }
        });
    }
    std::thread::scope(|scope| {
        scope.spawn(|| pool.reactor());
        for _ in 0..4 {
            scope.spawn(|| pool.work());
        }
    });
    println!("{}", total.load(Ordering::SeqCst));
}
