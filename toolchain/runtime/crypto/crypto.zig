// Digests, signatures and base64 of zig's standard library, which the compiler of the device programs
// brings: nothing of it is written or kept here. See crypto.h.
const std = @import("std");
const base64 = std.base64;
const Ed25519 = std.crypto.sign.Ed25519;
const Sha256 = std.crypto.hash.sha2.Sha256;
const Sha512 = std.crypto.hash.sha2.Sha512;

export fn zig_ed25519_verify(signature: *const [64]u8, key: *const [32]u8, message: [*]const u8, size: usize) bool {
    const public = Ed25519.PublicKey.fromBytes(key.*) catch return false;
    Ed25519.Signature.fromBytes(signature.*).verify(message[0..size], public) catch return false;
    return true;
}

export fn zig_sha256(data: [*]const u8, size: usize, digest: *[32]u8) void {
    Sha256.hash(data[0..size], digest, .{});
}

export fn zig_sha512(data: [*]const u8, size: usize, digest: *[64]u8) void {
    Sha512.hash(data[0..size], digest, .{});
}

export fn zig_base64_decode(text: [*]const u8, size: usize, bytes: [*]u8, capacity: usize, decoded: *usize) bool {
    const codec = base64.standard.Decoder;
    decoded.* = codec.calcSizeForSlice(text[0..size]) catch return false;
    if (decoded.* > capacity) return false;
    codec.decode(bytes[0..decoded.*], text[0..size]) catch return false;
    return true;
}
