package main

import "unsafe"

func address(p *byte) uintptr { return uintptr(unsafe.Pointer(p)) }
