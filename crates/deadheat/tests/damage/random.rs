//! Choices from a seed.

/// splitmix64
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// One of several, of which there is at least one.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    pub fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// Numbers at the edges of what a field may hold, and numbers near the one
/// that was there.
pub fn extreme(random: &mut Random, was: u64) -> u64 {
    const EDGES: [u64; 20] = [
        0,
        1,
        2,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        1 << 40,
        0x5fff_ffff_f000,
        0x6000_0000_0000,
        0x7fff_ffff_f000,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 4095,
        u64::MAX,
    ];
    match random.below(8) {
        0 => was.wrapping_add(1),
        1 => was.wrapping_sub(1),
        2 => was ^ 1 << random.below(64),
        3 => was.wrapping_mul(2),
        _ => *random.of(&EDGES),
    }
}
