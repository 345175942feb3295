//! Compiles the C++ edge against LLVM 22's headers. Nothing is linked: the
//! program that loads the plugin brings LLVM.

use std::path::PathBuf;
use std::process::exit;

#[path = "../ifr-runtime/fingerprint.rs"]
mod fingerprint;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../ifr-runtime/fingerprint.rs");
    println!(
        "cargo::rustc-env=DEADHEAT_IFR_FINGERPRINT={}",
        fingerprint::fingerprint()
    );
    println!("cargo::rerun-if-changed=shim/shim.cpp");
    println!("cargo::rerun-if-env-changed=DEADHEAT_LLVM_22");
    let prefix = std::env::var_os("DEADHEAT_LLVM_22")
        .map_or_else(|| PathBuf::from("/usr/lib/llvm-22"), PathBuf::from);
    let include = prefix.join("include");
    if !include.join("llvm/Plugins/PassPlugin.h").exists() {
        println!(
            "cargo::error=no LLVM 22 headers in {}; install the packages llvm-22-dev, clang-22 and lld-22 (scripts/need does), or name another prefix in DEADHEAT_LLVM_22",
            include.display()
        );
        exit(1);
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file("shim/shim.cpp")
        .include(include)
        .define("_GNU_SOURCE", None)
        .define("__STDC_CONSTANT_MACROS", None)
        .define("__STDC_FORMAT_MACROS", None)
        .define("__STDC_LIMIT_MACROS", None)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-funwind-tables")
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .compile("ifr_shim");
}
