//! `monitor` commands: where we are in the execution, and jumps in it.

use super::target::Debuggee;
use crate::Error;
use race::{Moment, plain};
use std::fmt::Write;

const HELP: &str = "\
monitor moment               where this is: thread, its instructions, all instructions
monitor moment THREAD:COUNT  go to where that thread executes that instruction
monitor race                 the two accesses and where they are
monitor race first|second    go to before that access
monitor race point           go to where both accesses are about to be made
monitor start, monitor end   go to the first or last instruction
monitor quit                 end the server when gdb disconnects
After a jump gdb still shows what it has read before: `maintenance flush register-cache`.
";

impl Debuggee {
    /// Carries out a command; its answer in words.
    pub(super) fn monitor(&mut self, command: &str) -> Result<String, Error> {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["moment"] => self.tell_moment(),
            ["moment", place] => match place.parse::<Moment>() {
                Ok(moment) => match self.session.timeline.ticks().tick(moment) {
                    Some(tick) => self.jump(tick, Some(moment.thread)),
                    None => Ok(format!("thread {} never gets to {moment}\n", moment.thread)),
                },
                Err(error) => Ok(format!("{error}\n")),
            },
            ["race"] => Ok(self.tell_race()),
            ["race", which] => {
                let landmarks = &self.session.landmarks;
                let place = match *which {
                    "first" | "1" => landmarks.first,
                    "second" | "2" => landmarks.second,
                    "point" => landmarks.point.map(|tick| (tick, None)),
                    _ => return Ok(HELP.into()),
                };
                match place {
                    Some((tick, thread)) => self.jump(tick, thread),
                    None => Ok(self.tell_race()),
                }
            }
            ["start"] => self.jump(0, None),
            ["end"] => self.jump(self.session.timeline.last_tick(), None),
            ["quit"] => {
                self.quits = true;
                Ok("the server ends when gdb disconnects\n".into())
            }
            _ => Ok(HELP.into()),
        }
    }

    fn tell_moment(&mut self) -> Result<String, Error> {
        let timeline = &mut self.session.timeline;
        let mut text = format!(
            "instruction {} of {} in all\n",
            timeline.tick(),
            timeline.ticks().end()
        );
        let next = timeline.ticks().moment(timeline.tick());
        for thread in timeline.threads()? {
            let mark = match next {
                Some(next) if next.thread == thread.id => "  executes next",
                _ if thread.waits => "  waits",
                _ => "",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "thread {} \"{}\" at {}:{}{mark}",
                thread.id,
                plain(&thread.name),
                thread.id,
                thread.executed
            );
        }
        Ok(text)
    }

    fn tell_race(&self) -> String {
        let landmarks = &self.session.landmarks;
        let (Some((first, _)), Some((second, _))) = (landmarks.first, landmarks.second) else {
            return "no race was asked for: start with --race N\n".into();
        };
        let ticks = self.session.timeline.ticks();
        let place = |tick: u64| {
            ticks
                .moment(tick)
                .map_or_else(|| "the end".to_string(), |moment| moment.to_string())
        };
        format!(
            "{}\nfirst access at {}, second at {}{}\n",
            plain(&landmarks.title),
            place(first),
            place(second),
            landmarks.point.map_or(String::new(), |_| {
                "; both orders begin at `monitor race point`".into()
            })
        )
    }

    fn jump(&mut self, tick: u64, thread: Option<u32>) -> Result<String, Error> {
        self.session.timeline.seek(tick, &mut || false)?;
        self.arrive(thread)?;
        let timeline = &self.session.timeline;
        let place = timeline
            .ticks()
            .moment(timeline.tick())
            .map_or_else(String::new, |moment| moment.to_string());
        Ok(format!(
            "now at {place}: `maintenance flush register-cache`, then `thread` with {}\n",
            self.thread()
        ))
    }
}
