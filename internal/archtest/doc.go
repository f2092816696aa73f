// Package archtest holds the tests of who may import whom (docs/ARCHITECTURE.md).
package archtest
