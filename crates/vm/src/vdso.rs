//! The functions that the kernel maps into every program: a small ELF image of
//! the vm's own in place of the kernel's vdso.
//!
//! The kernel's functions read clocks from pages that change under a program's
//! hands. These make system calls, which the vm answers: the same calls that a C
//! library makes without a vdso. What reads the image (glibc, musl, Go, a debugger,
//! an unwinder) finds what it knows from the kernel's: the names and their version,
//! both hash tables, unwind tables. The image is the same for every program, and
//! the vm chooses where it lies (`loader`).

use crate::layout::PAGE;

/// The file's name as linkers know it, and the version of its symbols.
const SONAME: &str = "linux-vdso.so.1";
const VERSION: &str = "LINUX_2.6";

/// Its functions and their system calls. Each has a second name, as the kernel's.
const FUNCTIONS: [(&str, &str, i64); 5] = [
    (
        "__vdso_clock_gettime",
        "clock_gettime",
        libc::SYS_clock_gettime,
    ),
    (
        "__vdso_gettimeofday",
        "gettimeofday",
        libc::SYS_gettimeofday,
    ),
    (
        "__vdso_clock_getres",
        "clock_getres",
        libc::SYS_clock_getres,
    ),
    ("__vdso_time", "time", libc::SYS_time),
    ("__vdso_getcpu", "getcpu", libc::SYS_getcpu),
];

/// Distance of functions.
const ALIGNMENT: usize = 16;

const HEADER_SIZE: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;
const SECTION_HEADER_SIZE: usize = 64;
const SYMBOL_SIZE: u64 = 24;
const DYNAMIC_SIZE: u64 = 16;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const READABLE: u32 = 4;
const EXECUTABLE: u32 = 1;

const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;
const SHT_HASH: u32 = 5;
const SHT_DYNAMIC: u32 = 6;
const SHT_DYNSYM: u32 = 11;
const SHT_GNU_HASH: u32 = 0x6fff_fff6;
const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
const SHT_GNU_VERSYM: u32 = 0x6fff_ffff;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;

/// The versions' numbers in the table of versions.
const BASE_VERSION: u16 = 1;
const SYMBOL_VERSION: u16 = 2;

/// A part of the image.
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    at: u64,
    size: u64,
    /// The section that this one refers to, by name.
    link: &'static str,
    info: u32,
    entry_size: u64,
}

/// What a section is, apart from its contents.
struct Kind {
    name: &'static str,
    kind: u32,
    link: &'static str,
    info: u32,
    entry_size: u64,
}

/// The image being put together. Addresses in it are offsets from its start.
struct Image {
    bytes: Vec<u8>,
    sections: Vec<Section>,
}

/// Bytes in the order of the machine.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn half(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
}

/// Names, each with a zero behind; the first is empty.
struct Strings(Vec<u8>);

impl Strings {
    fn new() -> Strings {
        Strings(vec![0])
    }

    fn add(&mut self, name: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(name.as_bytes());
        self.0.push(0);
        at
    }
}

/// A name of a function.
struct Symbol {
    name: &'static str,
    at: u64,
    size: u64,
    weak: bool,
}

/// The hash of System V's tables.
fn sysv_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

/// The hash of GNU's tables.
fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381u32, |hash, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(byte))
    })
}

impl Image {
    /// The section's place, aligned to eight bytes.
    fn append(&mut self, kind: &Kind, contents: &[u8]) -> u64 {
        let aligned = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(aligned, 0);
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(contents);
        let executable = u64::from(kind.name == ".text") * SHF_EXECINSTR;
        self.sections.push(Section {
            name: kind.name,
            kind: kind.kind,
            flags: SHF_ALLOC | executable,
            at,
            size: contents.len() as u64,
            link: kind.link,
            info: kind.info,
            entry_size: kind.entry_size,
        });
        at
    }

    fn section(&self, name: &str) -> (u64, u64) {
        let found = self.sections.iter().find(|section| section.name == name);
        found.map_or((0, 0), |section| (section.at, section.size))
    }

    fn number(&self, name: &str) -> u32 {
        let found = self
            .sections
            .iter()
            .position(|section| section.name == name);
        // The first section header describes no section.
        found.map_or(0, |index| index as u32 + 1)
    }

    /// The functions, one after the other; returns their names.
    fn functions(&mut self) -> Vec<Symbol> {
        let mut code = Vec::new();
        let mut places = Vec::new();
        for (_, _, call) in FUNCTIONS {
            // Between functions nothing may be executed.
            code.resize(code.len().next_multiple_of(ALIGNMENT), 0xcc);
            let start = code.len();
            // mov eax, call; syscall; ret
            code.push(0xb8);
            code.extend((call as u32).to_le_bytes());
            code.extend([0x0f, 0x05, 0xc3]);
            places.push((start as u64, (code.len() - start) as u64));
        }
        let text = self.append(&plain(".text", SHT_PROGBITS), &code);
        let mut symbols = Vec::new();
        for ((name, other, _), (start, size)) in FUNCTIONS.into_iter().zip(places) {
            for (name, weak) in [(name, false), (other, true)] {
                symbols.push(Symbol {
                    name,
                    at: text + start,
                    size,
                    weak,
                });
            }
        }
        symbols
    }

    /// The table of symbols, in the order of `symbols`, behind the empty one.
    fn symbol_table(&mut self, symbols: &[Symbol], strings: &mut Strings) {
        const GLOBAL_FUNCTION: u8 = 0x12;
        const WEAK_FUNCTION: u8 = 0x22;
        let text = self.number(".text") as u16;
        let mut table = Bytes(vec![0; SYMBOL_SIZE as usize]);
        for symbol in symbols {
            let kind = match symbol.weak {
                true => WEAK_FUNCTION,
                false => GLOBAL_FUNCTION,
            };
            table.word(strings.add(symbol.name));
            table.0.extend([kind, 0]);
            table.half(text).long(symbol.at).long(symbol.size);
        }
        let kind = Kind {
            link: ".dynstr",
            // The first symbol that is not local.
            info: 1,
            entry_size: SYMBOL_SIZE,
            ..plain(".dynsym", SHT_DYNSYM)
        };
        self.append(&kind, &table.0);
    }

    fn sysv_hash_table(&mut self, symbols: &[Symbol]) {
        const BUCKETS: usize = 3;
        let mut buckets = [0u32; BUCKETS];
        let mut chains = vec![0u32];
        for (index, symbol) in (1..).zip(symbols) {
            let bucket = &mut buckets[sysv_hash(symbol.name) as usize % BUCKETS];
            chains.push(*bucket);
            *bucket = index;
        }
        let mut table = Bytes::default();
        table.word(BUCKETS as u32).word(chains.len() as u32);
        for word in buckets.iter().chain(&chains) {
            table.word(*word);
        }
        let kind = Kind {
            link: ".dynsym",
            entry_size: 4,
            ..plain(".hash", SHT_HASH)
        };
        self.append(&kind, &table.0);
    }

    /// With one bucket, so that symbols may have any order.
    fn gnu_hash_table(&mut self, symbols: &[Symbol]) {
        const SHIFT: u32 = 6;
        let mut filter = 0u64;
        let mut chain = Vec::new();
        for symbol in symbols {
            let hash = gnu_hash(symbol.name);
            filter |= 1 << (hash % 64) | 1 << ((hash >> SHIFT) % 64);
            // The lowest bit says that the bucket ends.
            chain.push(hash & !1);
        }
        if let Some(last) = chain.last_mut() {
            *last |= 1;
        }
        let mut table = Bytes::default();
        // One bucket, from the first symbol on; one word of the filter.
        table.word(1).word(1).word(1).word(SHIFT).long(filter);
        table.word(1);
        for hash in chain {
            table.word(hash);
        }
        let kind = Kind {
            link: ".dynsym",
            ..plain(".gnu.hash", SHT_GNU_HASH)
        };
        self.append(&kind, &table.0);
    }

    /// Every symbol has the same version.
    fn versions(&mut self, symbols: &[Symbol], soname: u32, version: u32) {
        const FORM: u16 = 1;
        const IS_BASE: u16 = 1;
        const DEFINITION_SIZE: u32 = 20;
        const NAME_SIZE: u32 = 8;
        let mut of_symbols = Bytes::default();
        of_symbols.half(0);
        for _ in symbols {
            of_symbols.half(SYMBOL_VERSION);
        }
        let kind = Kind {
            link: ".dynsym",
            entry_size: 2,
            ..plain(".gnu.version", SHT_GNU_VERSYM)
        };
        self.append(&kind, &of_symbols.0);
        let mut definitions = Bytes::default();
        for (flags, number, name, text, next) in [
            (
                IS_BASE,
                BASE_VERSION,
                soname,
                SONAME,
                DEFINITION_SIZE + NAME_SIZE,
            ),
            (0, SYMBOL_VERSION, version, VERSION, 0),
        ] {
            definitions.half(FORM).half(flags).half(number).half(1);
            definitions.word(sysv_hash(text)).word(DEFINITION_SIZE);
            definitions.word(next);
            definitions.word(name).word(0);
        }
        let kind = Kind {
            link: ".dynstr",
            info: u32::from(SYMBOL_VERSION),
            ..plain(".gnu.version_d", SHT_GNU_VERDEF)
        };
        self.append(&kind, &definitions.0);
    }

    /// The return address is on top of the stack throughout: one description for
    /// all of the code.
    fn unwind_tables(&mut self) {
        const PC_RELATIVE: u8 = 0x1b;
        const COUNT: u8 = 0x03;
        const TABLE_RELATIVE: u8 = 0x3b;
        const FRAME_AT: usize = 20;
        let (text, size) = self.section(".text");
        let relative = |to: u64, from: u64| to.wrapping_sub(from) as u32;
        // The header, with a table of one entry, comes first.
        let header = self.append(&plain(".eh_frame_hdr", SHT_PROGBITS), &[0; FRAME_AT]);
        let mut frame = Bytes::default();
        // What is common: version 1, "zR", steps of 1 and -8, the return address
        // in column 16; it lies at the frame's end, which is rsp + 8.
        let common = [
            1,
            b'z',
            b'R',
            0,
            1,
            0x78,
            16,
            1,
            PC_RELATIVE,
            0x0c,
            7,
            8,
            0x90,
            1,
            0,
            0,
        ];
        frame.word(4 + common.len() as u32).word(0);
        frame.0.extend(common);
        let entry = frame.0.len() as u64;
        // Its length is known when it is written.
        let start = (self.bytes.len().next_multiple_of(ALIGNMENT)) as u64;
        frame.word(20).word(entry as u32 + 4);
        let place = start + frame.0.len() as u64;
        frame.word(relative(text, place)).word(size as u32);
        frame.0.extend([0; 8]);
        // The end.
        frame.word(0);
        let at = self.append(&plain(".eh_frame", SHT_PROGBITS), &frame.0);
        let mut table = Bytes(vec![1, PC_RELATIVE, COUNT, TABLE_RELATIVE]);
        table.word(relative(at, header + 4)).word(1);
        table.word(relative(text, header));
        table.word(relative(at + entry, header));
        let header = header as usize;
        self.bytes[header..header + table.0.len()].copy_from_slice(&table.0);
    }

    fn dynamic(&mut self, soname: u32) {
        const DT_HASH: u64 = 4;
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_STRSZ: u64 = 10;
        const DT_SYMENT: u64 = 11;
        const DT_SONAME: u64 = 14;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        const DT_VERSYM: u64 = 0x6fff_fff0;
        const DT_VERDEF: u64 = 0x6fff_fffc;
        const DT_VERDEFNUM: u64 = 0x6fff_fffd;
        let at = |name: &str| self.section(name).0;
        let mut table = Bytes::default();
        for (key, value) in [
            (DT_SONAME, u64::from(soname)),
            (DT_HASH, at(".hash")),
            (DT_GNU_HASH, at(".gnu.hash")),
            (DT_STRTAB, at(".dynstr")),
            (DT_SYMTAB, at(".dynsym")),
            (DT_STRSZ, self.section(".dynstr").1),
            (DT_SYMENT, SYMBOL_SIZE),
            (DT_VERSYM, at(".gnu.version")),
            (DT_VERDEF, at(".gnu.version_d")),
            (DT_VERDEFNUM, u64::from(SYMBOL_VERSION)),
            (0, 0),
        ] {
            table.long(key).long(value);
        }
        let kind = Kind {
            link: ".dynstr",
            entry_size: DYNAMIC_SIZE,
            ..plain(".dynamic", SHT_DYNAMIC)
        };
        self.append(&kind, &table.0);
    }

    /// For debuggers; returns where the headers of sections are, and how many.
    fn section_headers(&mut self) -> (u64, u16) {
        const NAMES: &str = ".shstrtab";
        let mut names = Strings::new();
        let mut placed: Vec<u32> = self
            .sections
            .iter()
            .map(|section| names.add(section.name))
            .collect();
        placed.push(names.add(NAMES));
        self.append(&plain(NAMES, SHT_STRTAB), &names.0);
        let mut headers = Bytes(vec![0; SECTION_HEADER_SIZE]);
        for (section, name) in self.sections.iter().zip(placed) {
            headers.word(name).word(section.kind).long(section.flags);
            headers.long(section.at).long(section.at).long(section.size);
            headers.word(self.number(section.link)).word(section.info);
            headers.long(ALIGNMENT as u64).long(section.entry_size);
        }
        let aligned = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(aligned, 0);
        let at = self.bytes.len() as u64;
        self.bytes.extend(headers.0);
        (at, self.sections.len() as u16 + 1)
    }

    /// The beginning, when everything else has its place.
    fn headers(&mut self, sections: (u64, u16)) {
        const SHARED_OBJECT: u16 = 3;
        const X86_64: u16 = 62;
        let whole = (0, self.bytes.len() as u64);
        let segments = [
            (PT_LOAD, READABLE | EXECUTABLE, whole, PAGE),
            (PT_DYNAMIC, READABLE, self.section(".dynamic"), 8),
            (PT_GNU_EH_FRAME, READABLE, self.section(".eh_frame_hdr"), 4),
        ];
        // 64 bits, little endian, version 1, of System V.
        let mut header = Bytes(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec());
        header.half(SHARED_OBJECT).half(X86_64).word(1);
        header.long(self.section(".text").0);
        header.long(HEADER_SIZE as u64).long(sections.0);
        header.word(0).half(HEADER_SIZE as u16);
        header
            .half(PROGRAM_HEADER_SIZE as u16)
            .half(segments.len() as u16);
        header.half(SECTION_HEADER_SIZE as u16).half(sections.1);
        // The names of sections are the last one.
        header.half(sections.1 - 1);
        for (kind, flags, (at, size), alignment) in segments {
            header.word(kind).word(flags).long(at).long(at).long(at);
            header.long(size).long(size).long(alignment);
        }
        self.bytes[..header.0.len()].copy_from_slice(&header.0);
    }
}

/// A section that refers to no other.
fn plain(name: &'static str, kind: u32) -> Kind {
    Kind {
        name,
        kind,
        link: "",
        info: 0,
        entry_size: 0,
    }
}

/// The image, less than a page.
pub fn image() -> Vec<u8> {
    const SEGMENTS: usize = 3;
    let mut image = Image {
        bytes: vec![0; HEADER_SIZE + SEGMENTS * PROGRAM_HEADER_SIZE],
        sections: Vec::new(),
    };
    let symbols = image.functions();
    let mut strings = Strings::new();
    let soname = strings.add(SONAME);
    let version = strings.add(VERSION);
    image.symbol_table(&symbols, &mut strings);
    image.append(&plain(".dynstr", SHT_STRTAB), &strings.0);
    image.sysv_hash_table(&symbols);
    image.gnu_hash_table(&symbols);
    image.versions(&symbols, soname, version);
    image.unwind_tables();
    image.dynamic(soname);
    let sections = image.section_headers();
    image.headers(sections);
    image.bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::elf::{FileHeader64, SHT_GNU_VERDEF};
    use object::read::elf::{ElfFile64, FileHeader, GnuHashTable, HashTable, SectionHeader};
    use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};

    fn names() -> Vec<&'static str> {
        let of = |(name, other, _): (&'static str, &'static str, i64)| [name, other];
        FUNCTIONS.into_iter().flat_map(of).collect()
    }

    #[test]
    fn it_fits_a_page() {
        assert!(image().len() <= PAGE as usize);
        assert_eq!(image(), image());
    }

    #[test]
    fn symbols_are_functions_that_make_their_call() {
        let bytes = image();
        let file = ElfFile64::<LittleEndian>::parse(&*bytes).expect("an ELF file");
        let mut seen = Vec::new();
        for symbol in file.dynamic_symbols() {
            let name = symbol.name().expect("a name");
            let code = &bytes[symbol.address() as usize..][..symbol.size() as usize];
            let (_, _, call) = FUNCTIONS
                .into_iter()
                .find(|(one, other, _)| [*one, *other].contains(&name))
                .expect("a function of the kernel's");
            assert_eq!(
                code[..5],
                [&[0xb8], &(call as u32).to_le_bytes()[..]].concat()
            );
            assert_eq!(code[5..], [0x0f, 0x05, 0xc3]);
            assert_eq!(symbol.is_weak(), !name.starts_with("__vdso_"));
            seen.push(name);
        }
        assert_eq!(seen, names());
    }

    #[test]
    fn both_hash_tables_find_every_name_in_its_version() {
        let bytes = image();
        let header = FileHeader64::<LittleEndian>::parse(&*bytes).expect("a header");
        let endian = LittleEndian;
        let sections = header.sections(endian, &*bytes).expect("sections");
        let symbols = sections
            .symbols(endian, &*bytes, object::elf::SHT_DYNSYM)
            .expect("symbols");
        let versions = sections
            .versions(endian, &*bytes)
            .expect("versions that can be read")
            .expect("versions");
        let hash: HashTable<'_, FileHeader64<LittleEndian>> = sections
            .hash(endian, &*bytes)
            .expect("a table that can be read")
            .expect("a hash table")
            .0;
        let gnu: GnuHashTable<'_, FileHeader64<LittleEndian>> = sections
            .gnu_hash(endian, &*bytes)
            .expect("a table that can be read")
            .expect("a GNU hash table")
            .0;
        for name in names() {
            let name = name.as_bytes();
            let find = |version: Option<&object::read::elf::Version<'_>>| {
                let one = hash
                    .find(
                        endian,
                        name,
                        object::elf::hash(name),
                        version,
                        &symbols,
                        &versions,
                    )
                    .map(|(index, _)| index);
                let other = gnu
                    .find(
                        endian,
                        name,
                        object::elf::gnu_hash(name),
                        version,
                        &symbols,
                        &versions,
                    )
                    .map(|(index, _)| index);
                assert_eq!(one, other);
                one
            };
            let index = find(None).expect("the name is found");
            let version = versions
                .version(versions.version_index(endian, index).into())
                .expect("a version that is defined")
                .expect("a version");
            assert_eq!(version.name(), VERSION.as_bytes());
            assert_eq!(version.hash(), 0x03ae_75f6);
            assert_eq!(find(Some(version)), Some(index));
        }
        let defined = sections
            .iter()
            .any(|section| section.sh_type(endian) == SHT_GNU_VERDEF);
        assert!(defined);
    }

    #[test]
    fn unwind_tables_cover_all_of_the_code() {
        let bytes = image();
        let file = ElfFile64::<LittleEndian>::parse(&*bytes).expect("an ELF file");
        let section = |name| file.section_by_name(name).expect("a section");
        let (text, header) = (section(".text"), section(".eh_frame_hdr"));
        let frame = section(".eh_frame");
        let word = |at: u64| {
            let at = at as usize;
            i64::from(i32::from_le_bytes(
                bytes[at..at + 4].try_into().expect("four bytes"),
            ))
        };
        let at = header.address();
        assert_eq!(at as i64 + 4 + word(at + 4), frame.address() as i64);
        assert_eq!(word(at + 8), 1, "one entry");
        assert_eq!(at as i64 + word(at + 12), text.address() as i64);
        let entry = (at as i64 + word(at + 16)) as u64;
        assert_eq!(entry as i64 + 4 - word(entry + 4), frame.address() as i64);
        assert_eq!(entry as i64 + 8 + word(entry + 8), text.address() as i64);
        assert_eq!(word(entry + 12), text.size() as i64);
    }
}
