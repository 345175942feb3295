//! The processor that the guest sees: what CPUID and XGETBV say, and how the
//! XSAVE area is laid out.
//!
//! Read from the host once, when a recording is made, and kept in it
//! (`processor.json`): a replay, every copy made of it and every process of the
//! tree get the same answers, whatever machine they run on and whichever of its
//! processors they are on at that moment. What a program cannot use under the vm
//! is left out (transactions, protection keys, tiles, shadow stacks, user
//! interrupts), and everything that tells one processor of a machine from
//! another says "the first".
//!
//! Guarantee: what these instructions tell depends on the recording alone. Not
//! covered: results that makes of processors compute differently (`rcpps`,
//! `fsin`, flags that the manuals call undefined); `Results` says whether this
//! machine agrees. docs/determinism.md has the whole list.

use crate::Error;
use crate::record::{RecordError, read_json, write_json};
use crate::vector::{self, GUEST_COMPONENTS, HIGH_512, OPMASK, UPPER_256, UPPER_512};
use serde::{Deserialize, Serialize};
use std::arch::x86_64::__cpuid_count;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;
use xxhash_rust::xxh3::Xxh3;

/// Answers of CPUID: eax, ebx, ecx, edx.
type Words = [u32; 4];

const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;

/// First leaf of each range that says in eax which is its last.
const RANGES: [u32; 3] = [0, 0x4000_0000, 0x8000_0000];

/// More leaves than any processor has in a range.
const MOST_LEAVES: u32 = 0x100;

/// Leaves with an answer for each subleaf, and how many subleaves are kept:
/// those that are all zeros end the list earlier.
const WITH_SUBLEAVES: [(u32, u32); 17] = [
    (4, 16),
    (7, 4),
    (0xb, 4),
    (0xd, 20),
    (0xf, 2),
    (0x10, 4),
    (0x12, 4),
    (0x14, 2),
    (0x17, 4),
    (0x18, 16),
    (0x1f, 8),
    (0x20, 2),
    (0x23, 6),
    (0x24, 2),
    (0x8000_001d, 8),
    (0x8000_0020, 4),
    (0x8000_0026, 8),
];

/// Lists of subleaves that a zero does not end.
const WITH_GAPS: [u32; 2] = [0xd, 0x23];

/// Offset of the first component in the compacted format, and the least in the
/// standard one.
pub const EXTENDED_AT: usize = 576;

/// No XSAVE area here is larger, whatever a recording says.
const MOST_AREA: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processor {
    leaves: BTreeMap<(u32, u32), Words>,
    /// Components of the extended state.
    xcr0: u64,
    /// Bits of MXCSR that can be set.
    mxcsr_mask: u32,
    results: Results,
}

/// The file in a recording.
#[derive(Serialize, Deserialize)]
struct Stored {
    xcr0: u64,
    mxcsr_mask: u32,
    results: Results,
    /// Leaf, subleaf, eax, ebx, ecx, edx.
    cpuid: Vec<[u32; 6]>,
}

/// Hashes of what instructions compute whose result the architecture leaves
/// open: processors of different makes agree in the upper bits only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// rcpps and rsqrtps.
    reciprocals: u64,
    /// Sine, tangent, logarithm and their kin in the x87 unit.
    transcendental: u64,
    /// Status flags that the manuals call undefined, and what scans for a bit
    /// leave behind that find none.
    undefined: u64,
}

/// Where a component of the extended state is in the guest's areas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub number: u32,
    /// In the standard format.
    pub standard: Range<usize>,
    /// In the compacted format it begins at a multiple of 64.
    pub aligned: bool,
}

fn file_in(recording: &Path) -> folder::Place {
    folder::Place::of(recording).join("processor.json")
}

impl Processor {
    /// This machine's, as a guest sees it.
    pub fn host() -> &'static Processor {
        static HOST: LazyLock<Processor> = LazyLock::new(Processor::read_host);
        &HOST
    }

    fn read_host() -> Processor {
        let mut leaves = BTreeMap::new();
        for first in RANGES {
            let last = __cpuid_count(first, 0).eax;
            if last < first || last - first >= MOST_LEAVES {
                continue;
            }
            for leaf in first..=last {
                let subleaves = WITH_SUBLEAVES
                    .iter()
                    .find(|(with, _)| *with == leaf)
                    .map_or(1, |(_, count)| *count);
                for subleaf in 0..subleaves {
                    let host = __cpuid_count(leaf, subleaf);
                    let words = [host.eax, host.ebx, host.ecx, host.edx];
                    let ends = words == [0; 4] && subleaf > 0 && !WITH_GAPS.contains(&leaf);
                    if ends {
                        break;
                    }
                    leaves.insert((leaf, subleaf), words);
                }
            }
        }
        let mut processor = Processor {
            leaves,
            xcr0: vector::guest_xcr0(),
            mxcsr_mask: vector::host_mxcsr_mask(),
            results: Results::of_this_machine(),
        };
        processor.leave_out();
        processor
    }

    /// Takes out what the guest cannot use, and which processor it was.
    fn leave_out(&mut self) {
        let components = self.xcr0;
        let places = self.places();
        let standard = places.iter().map(|place| place.standard.end).max();
        let compacted = compacted(&places, components).1;
        for ((leaf, subleaf), words) in &mut self.leaves {
            match (*leaf, *subleaf) {
                (1, _) => {
                    // The APIC id. No monitor.
                    words[EBX] &= 0x00ff_ffff;
                    words[ECX] &= !(1 << 3);
                }
                (7, 0) => {
                    // No transactional memory (HLE, RTM), no MPX.
                    words[EBX] &= !(1 << 4 | 1 << 11 | 1 << 14);
                    // No protection keys, waitpkg, shadow stacks.
                    words[ECX] &= !(1 << 3 | 1 << 4 | 1 << 5 | 1 << 7);
                    // No user interrupts, indirect branch tracking, AMX.
                    words[EDX] &= !(1 << 5 | 1 << 20 | 1 << 22 | 1 << 24 | 1 << 25);
                }
                (7, 1) => {
                    // No AMX, no APX.
                    words[EAX] &= !(1 << 21);
                    words[EDX] &= !(1 << 8 | 1 << 21);
                }
                (0xd, 0) => {
                    let size = standard.unwrap_or(EXTENDED_AT) as u32;
                    *words = [components as u32, size, size, (components >> 32) as u32];
                }
                (0xd, 1) => {
                    // No XFD, no supervisor components.
                    *words = [words[EAX] & 0xf, compacted as u32, 0, 0];
                }
                (0xd, number) if components & 1u64.wrapping_shl(number) == 0 => *words = [0; 4],
                // AMX tiles.
                (0x1d | 0x1e, _) => *words = [0; 4],
                // Topology: the first processor.
                (0xb | 0x1f | 0x8000_0026, _) => words[EDX] = 0,
                (0x8000_001e, _) => {
                    words[EAX] = 0;
                    words[EBX] &= !0xff;
                    words[ECX] &= !0xff;
                }
                // No lightweight profiling, no monitorx.
                (0x8000_0001, _) => words[ECX] &= !(1 << 15 | 1 << 29),
                // No rdpru.
                (0x8000_0008, _) => words[EBX] &= !(1 << 4),
                _ => {}
            }
        }
    }

    /// What CPUID answers.
    pub fn cpuid(&self, leaf: u32, subleaf: u32) -> Words {
        let with_subleaves = WITH_SUBLEAVES.iter().any(|(with, _)| *with == leaf);
        let key = (leaf, if with_subleaves { subleaf } else { 0 });
        if let Some(words) = self.leaves.get(&key) {
            return *words;
        }
        match leaf {
            // Levels of topology that there are not say their number.
            0xb | 0x1f | 0x8000_0026 if self.leaves.contains_key(&(leaf, 0)) => {
                [0, 0, subleaf & 0xff, 0]
            }
            _ if self.leaves.contains_key(&(leaf, 0)) => [0; 4],
            // Leaves that there are not: Intel's answer as the last does.
            _ if self.is_by_intel() => {
                let last = self.cpuid_of(0)[EAX];
                self.leaves
                    .get(&(last, subleaf))
                    .or_else(|| self.leaves.get(&(last, 0)))
                    .copied()
                    .unwrap_or_default()
            }
            _ => [0; 4],
        }
    }

    fn cpuid_of(&self, leaf: u32) -> Words {
        self.leaves.get(&(leaf, 0)).copied().unwrap_or_default()
    }

    fn is_by_intel(&self) -> bool {
        self.cpuid_of(0)[EBX] == u32::from_le_bytes(*b"Genu")
    }

    /// XCR0, and, because the guest always sees all of it in use, XINUSE.
    pub fn components(&self) -> u64 {
        self.xcr0
    }

    pub fn mxcsr_mask(&self) -> u32 {
        self.mxcsr_mask
    }

    pub fn has_compacted_format(&self) -> bool {
        self.cpuid(0xd, 1)[EAX] & 2 != 0
    }

    /// Components beyond x87 and SSE, in the order of their numbers.
    pub fn places(&self) -> Vec<Place> {
        [UPPER_256, OPMASK, UPPER_512, HIGH_512]
            .into_iter()
            .filter(|number| self.xcr0 & (1 << number) != 0)
            .filter_map(|number| {
                let words = self.leaves.get(&(0xd, number))?;
                let start = words[EBX] as usize;
                Some(Place {
                    number,
                    standard: start..start.checked_add(words[EAX] as usize)?,
                    aligned: words[ECX] & 2 != 0,
                })
            })
            .collect()
    }

    /// Bytes of an area in the standard format.
    pub fn area_size(&self) -> usize {
        self.places()
            .iter()
            .map(|place| place.standard.end)
            .max()
            .unwrap_or(EXTENDED_AT)
    }

    /// Where makers differ, it does as AMD's do.
    pub fn is_amd(&self) -> bool {
        // How the makers' names begin: "Auth", "Hygo".
        [0x6874_7541, 0x6f67_7948].contains(&self.cpuid_of(0)[1])
    }

    /// The name that the maker gave it.
    pub fn name(&self) -> String {
        let bytes: Vec<u8> = (0x8000_0002..=0x8000_0004)
            .flat_map(|leaf| self.cpuid_of(leaf))
            .flat_map(u32::to_le_bytes)
            .take_while(|byte| *byte != 0)
            .filter(|byte| byte.is_ascii_graphic() || *byte == b' ')
            .collect();
        match String::from_utf8_lossy(&bytes).trim() {
            "" => "a processor without a name".to_string(),
            name => name.to_string(),
        }
    }

    pub fn write(&self, recording: &Path) -> Result<(), RecordError> {
        let stored = Stored {
            xcr0: self.xcr0,
            mxcsr_mask: self.mxcsr_mask,
            results: self.results,
            cpuid: self
                .leaves
                .iter()
                .map(|((leaf, subleaf), [eax, ebx, ecx, edx])| {
                    [*leaf, *subleaf, *eax, *ebx, *ecx, *edx]
                })
                .collect(),
        };
        write_json(&file_in(recording), &stored)
    }

    /// The processor of a recording, if this machine can stand in for it.
    pub fn read(recording: &Path) -> Result<Processor, Error> {
        let place = file_in(recording);
        let damaged = |what: &str| Error::from(RecordError::damaged(&place.path(), what));
        let stored: Stored = read_json(&place)?;
        let processor = Processor {
            leaves: stored
                .cpuid
                .iter()
                .map(|[leaf, subleaf, eax, ebx, ecx, edx]| {
                    ((*leaf, *subleaf), [*eax, *ebx, *ecx, *edx])
                })
                .collect(),
            xcr0: stored.xcr0,
            mxcsr_mask: stored.mxcsr_mask,
            results: stored.results,
        };
        if !processor.makes_sense() {
            return Err(damaged("it describes no processor"));
        }
        let missing = processor.missing(Processor::host());
        if !missing.is_empty() {
            return Err(Error::Machine(format!(
                "{} was made on {}, and this processor lacks {}, which its program may use; \
                 replay it on a processor that has them",
                recording.display(),
                processor.name(),
                missing.join(", ")
            )));
        }
        Ok(processor)
    }

    /// The extended state can be laid out as it says.
    fn makes_sense(&self) -> bool {
        let places = self.places();
        let wanted = |place: &Place| match place.number {
            UPPER_256 => 256,
            OPMASK => 64,
            UPPER_512 => 512,
            _ => 1024,
        };
        let mut ranges: Vec<_> = places.iter().map(|place| place.standard.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        self.xcr0 & !GUEST_COMPONENTS == 0
            && self.xcr0 & 3 == 3
            && places.len() == (self.xcr0 & !3).count_ones() as usize
            && places
                .iter()
                .all(|place| place.standard.len() == wanted(place))
            && ranges
                .iter()
                .all(|range| range.start >= EXTENDED_AT && range.end <= MOST_AREA)
            && ranges.windows(2).all(|pair| pair[0].end <= pair[1].start)
            && self.mxcsr_mask & 0xffff == 0xffff
    }

    /// Names of what a program may find here and not on `other`.
    fn missing(&self, other: &Processor) -> Vec<String> {
        let mut missing = Vec::new();
        for (leaf, subleaf, word, names) in FEATURES {
            let lacks = self.cpuid(leaf, subleaf)[word] & !other.cpuid(leaf, subleaf)[word];
            missing.extend(
                names
                    .iter()
                    .filter(|(bit, _)| lacks & (1 << bit) != 0)
                    .map(|(_, name)| name.to_string()),
            );
        }
        if missing.is_empty() && self.xcr0 & !other.xcr0 != 0 {
            missing.push("some of its vector registers".to_string());
        }
        missing
    }

    /// Why a replay here may differ although everything was replayed: a
    /// sentence.
    pub fn difference(&self) -> Option<String> {
        let host = Processor::host();
        if self.results == host.results {
            return None;
        }
        Some(format!(
            "the recording was made on {}; this machine ({}) computes other results for {}",
            self.name(),
            host.name(),
            self.results.differing(&host.results).join(" and for ")
        ))
    }
}

/// Where the components of `wanted` begin in the compacted format, and how long
/// the area is.
pub fn compacted(places: &[Place], wanted: u64) -> (Vec<(u32, usize)>, usize) {
    let mut at = EXTENDED_AT;
    let mut starts = Vec::new();
    for place in places {
        if wanted & (1 << place.number) == 0 {
            continue;
        }
        if place.aligned {
            at = at.next_multiple_of(64);
        }
        starts.push((place.number, at));
        at += place.standard.len();
    }
    (starts, at)
}

type Names = &'static [(u32, &'static str)];

/// Instructions that a program finds by CPUID and can execute without asking
/// the kernel: leaf, subleaf, word, bits.
const FEATURES: [(u32, u32, usize, Names); 7] = [
    (
        1,
        0,
        ECX,
        &[
            (0, "SSE3"),
            (1, "PCLMULQDQ"),
            (9, "SSSE3"),
            (12, "FMA"),
            (13, "CMPXCHG16B"),
            (19, "SSE4.1"),
            (20, "SSE4.2"),
            (22, "MOVBE"),
            (23, "POPCNT"),
            (25, "AES"),
            (26, "XSAVE"),
            (28, "AVX"),
            (29, "F16C"),
            (30, "RDRAND"),
        ],
    ),
    (
        7,
        0,
        EBX,
        &[
            (0, "FSGSBASE"),
            (3, "BMI1"),
            (5, "AVX2"),
            (8, "BMI2"),
            (9, "ERMS"),
            (16, "AVX512F"),
            (17, "AVX512DQ"),
            (18, "RDSEED"),
            (19, "ADX"),
            (21, "AVX512_IFMA"),
            (23, "CLFLUSHOPT"),
            (24, "CLWB"),
            (28, "AVX512CD"),
            (29, "SHA"),
            (30, "AVX512BW"),
            (31, "AVX512VL"),
        ],
    ),
    (
        7,
        0,
        ECX,
        &[
            (1, "AVX512_VBMI"),
            (6, "AVX512_VBMI2"),
            (8, "GFNI"),
            (9, "VAES"),
            (10, "VPCLMULQDQ"),
            (11, "AVX512_VNNI"),
            (12, "AVX512_BITALG"),
            (14, "AVX512_VPOPCNTDQ"),
            (22, "RDPID"),
            (27, "MOVDIRI"),
            (28, "MOVDIR64B"),
        ],
    ),
    (
        7,
        0,
        EDX,
        &[(8, "AVX512_VP2INTERSECT"), (23, "AVX512_FP16")],
    ),
    (
        7,
        1,
        EAX,
        &[
            (0, "SHA512"),
            (1, "SM3"),
            (2, "SM4"),
            (4, "AVX_VNNI"),
            (5, "AVX512_BF16"),
            (23, "AVX_IFMA"),
        ],
    ),
    (
        0x8000_0001,
        0,
        ECX,
        &[
            (0, "LAHF"),
            (5, "LZCNT"),
            (6, "SSE4A"),
            (11, "XOP"),
            (16, "FMA4"),
            (21, "TBM"),
        ],
    ),
    (
        0xd,
        1,
        EAX,
        &[
            (0, "XSAVEOPT"),
            (1, "XSAVEC"),
            (2, "XGETBV of what is in use"),
        ],
    ),
];

impl Results {
    /// Tries the instructions on some thousand values, in some 50 microseconds.
    fn of_this_machine() -> Results {
        Results {
            reciprocals: reciprocals(),
            transcendental: transcendental(),
            undefined: undefined(),
        }
    }

    /// What the two disagree in, by the names of instructions.
    fn differing(&self, other: &Results) -> Vec<&'static str> {
        [
            (self.reciprocals, other.reciprocals, "rcpps and rsqrtps"),
            (
                self.transcendental,
                other.transcendental,
                "fsin, fyl2x and the like",
            ),
            (
                self.undefined,
                other.undefined,
                "flags that imul, div, shifts and bit scans leave undefined",
            ),
        ]
        .into_iter()
        .filter(|(one, another, _)| one != another)
        .map(|(_, _, name)| name)
        .collect()
    }
}

fn reciprocals() -> u64 {
    use std::arch::x86_64::{_mm_loadu_ps, _mm_rcp_ps, _mm_rsqrt_ps, _mm_storeu_ps};
    let mut hash = Xxh3::new();
    // Two powers of two, for rsqrtps, and steps small enough for tables of
    // 4,096 entries.
    for step in (0u32..1 << 24).step_by(1 << 13) {
        let values: [f32; 4] =
            std::array::from_fn(|lane| f32::from_bits(0x3f80_0000 + step + lane as u32 * 0x7ff));
        let mut results = [[0f32; 4]; 2];
        // SAFETY: SSE is part of x86-64; the arrays hold four numbers each.
        unsafe {
            let values = _mm_loadu_ps(values.as_ptr());
            _mm_storeu_ps(results[0].as_mut_ptr(), _mm_rcp_ps(values));
            _mm_storeu_ps(results[1].as_mut_ptr(), _mm_rsqrt_ps(values));
        }
        for result in results.iter().flatten() {
            hash.update(&result.to_bits().to_le_bytes());
        }
    }
    hash.digest()
}

fn transcendental() -> u64 {
    let mut hash = Xxh3::new();
    for step in 1..64u32 {
        let value = f64::from(step) / 67.0;
        let mut results = [[0u8; 10]; 4];
        // SAFETY: the instructions leave the register stack as they found it
        // and store ten bytes each; values between 0 and 1 raise nothing but
        // masked exceptions.
        unsafe {
            std::arch::asm!(
                "fld qword ptr [{value}]",
                "fsin",
                "fstp tbyte ptr [{results}]",
                "fld qword ptr [{value}]",
                "f2xm1",
                "fstp tbyte ptr [{results} + 10]",
                "fld1",
                "fld qword ptr [{value}]",
                "fyl2x",
                "fstp tbyte ptr [{results} + 20]",
                "fld qword ptr [{value}]",
                "fld1",
                "fpatan",
                "fstp tbyte ptr [{results} + 30]",
                value = in(reg) &value,
                results = in(reg) results.as_mut_ptr(),
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            );
        }
        for result in &results {
            hash.update(result);
        }
    }
    hash.digest()
}

/// Executes an instruction on `$a` in rax, `$b` in rcx and 0 in rdx, with all
/// status flags clear and again with all set, and hashes the registers and flags
/// it leaves.
macro_rules! left_by {
    ($hash:ident, $a:ident, $b:ident, $($text:literal),+) => {$({
        for set in [0u64, STATUS_FLAGS] {
            let (mut rax, mut rdx, flags): (u64, u64, u64) = ($a, 0, set);
            let after: u64;
            // SAFETY: the instruction works on the named registers alone and
            // cannot fault; the flags are not assumed to be kept.
            unsafe {
                std::arch::asm!(
                    "push {flags}",
                    "popfq",
                    $text,
                    "pushfq",
                    "pop {flags}",
                    flags = inout(reg) flags | ALWAYS_SET => after,
                    inout("rax") rax,
                    inout("rdx") rdx,
                    in("rcx") $b,
                );
            }
            for word in [rax, rdx, after & STATUS_FLAGS] {
                $hash.update(&word.to_le_bytes());
            }
        }
    })+};
}

/// OF, SF, ZF, AF, PF, CF.
const STATUS_FLAGS: u64 = 0x8d5;
/// Bit 1 of the flags, and that interrupts are enabled.
const ALWAYS_SET: u64 = 0x202;

fn undefined() -> u64 {
    const VALUES: [u64; 6] = [0, 1, 0x7f, 0x8000_0000, 0x1234_5678_9abc_def0, u64::MAX];
    let mut hash = Xxh3::new();
    for a in VALUES {
        for b in VALUES {
            left_by!(
                hash,
                a,
                b,
                "imul rax, rcx",
                "mul rcx",
                "shl rax, cl",
                "sar eax, cl",
                "shld ax, dx, cl",
                "rcl rax, cl",
                "rol rax, cl",
                "bsf rax, rcx",
                "bsr eax, ecx",
                "bt rax, rcx",
                "and rax, rcx",
                "tzcnt rax, rcx",
                "lzcnt rax, rcx",
                "popcnt rax, rcx"
            );
        }
        // Divisors are odd and larger than the upper half: no fault.
        let b = a | 1;
        left_by!(hash, a, b, "div rcx");
    }
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_machine_computes_the_same_twice_and_names_what_another_does_not() {
        let here = Results::of_this_machine();
        assert_eq!(here, Results::of_this_machine());
        let other = Results {
            undefined: !here.undefined,
            ..here
        };
        assert_eq!(here.differing(&other).len(), 1);
        let mut processor = Processor::host().clone();
        assert_eq!(processor.difference(), None);
        processor.results = other;
        let said = processor.difference().expect("it differs");
        assert!(
            said.contains("bit scans") && !said.contains("fsin"),
            "{said}"
        );
    }

    #[test]
    fn no_answer_tells_one_processor_of_a_machine_from_another() {
        let host = Processor::host();
        assert_eq!(host.cpuid(1, 0)[EBX] >> 24, 0);
        for leaf in [0xb, 0x1f, 0x8000_0026] {
            assert_eq!(host.cpuid(leaf, 0)[EDX], 0);
        }
        assert_eq!(host.cpuid(0x8000_001e, 0)[EAX], 0);
        assert_eq!(Processor::read_host(), *host);
    }

    #[test]
    fn what_was_written_is_read_and_another_machine_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut processor = Processor::host().clone();
        processor.write(folder.path()).expect("it can be written");
        let read = Processor::read(folder.path()).expect("it can be read");
        assert_eq!(read, processor);
        // AMX would do, too, if it had a name here: XOP is on no processor
        // that is still made.
        let words = processor.leaves.get_mut(&(0x8000_0001, 0));
        words.expect("every processor has this leaf")[ECX] |= 1 << 11;
        let other = folder.path().join("other");
        std::fs::create_dir(&other).expect("it can be made");
        processor.write(&other).expect("it can be written");
        let error = Processor::read(&other).expect_err("no such processor");
        assert!(error.to_string().contains("lacks XOP"), "{error}");
    }

    #[test]
    fn an_area_of_any_size_is_not_believed() {
        let mut processor = Processor::host().clone();
        assert!(processor.makes_sense());
        if let Some(words) = processor.leaves.get_mut(&(0xd, UPPER_256)) {
            words[EBX] = u32::MAX - 255;
        }
        assert!(!processor.makes_sense() || processor.xcr0 & 4 == 0);
    }

    #[test]
    fn leaves_that_are_not_there_have_an_answer() {
        let host = Processor::host();
        for leaf in [0x70, 0x3fff_ffff, 0x8000_ffff, u32::MAX] {
            for subleaf in [0, 1, u32::MAX] {
                assert_eq!(host.cpuid(leaf, subleaf), host.cpuid(leaf, subleaf));
            }
        }
        assert_eq!(host.cpuid(0xd, 63), [0; 4]);
    }
}
