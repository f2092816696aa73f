module github.com/ratoon-project/ratoon

go 1.26
